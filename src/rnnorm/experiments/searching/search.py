"""``rnnorm search``: the random search of a paper, one run folder for each trial."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from optuna.trial import TrialState

from rnnorm.experiments.searching.study import WHY, Search, open_study, read_search
from rnnorm.experiments.training.building import Built, as_text
from rnnorm.experiments.training.finite import DivergedError
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.recipe import read_recipe
from rnnorm.experiments.training.score import score_of


def search(
    recipe: str,
    out: str | Path,
    *,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    trials: int | None = None,
    epochs: int | None = None,
    seed: int = 1,
    overrides: Sequence[str] = (),
) -> Search:
    """Train a recipe with options drawn at random from the ranges that it states.

    A study that was stopped, by a kill too, goes on with the trial that it was in. The options of
    a trial are a function of the seed and the trial's number alone. One process at a time.

    Args:
        recipe: its name; it has the key ``search``.
        out: folder of the study (``study.db``) and of its trials' run folders.
        data_dir: where the data set's files are; without it they are downloaded.
        scale: ``"paper"`` (the default) or ``"small"``.
        trials: how many, those that failed and those of an earlier call included; the recipe's
            number by default.
        epochs: of each trial; the recipe's number by default.
        seed: seed of the draws.
        overrides: options of LightningCLI for all trials.

    Returns:
        The trials so far. One that diverged has failed and counts.

    Raises:
        ValueError: the recipe has no ranges, or the folder holds a study of something else.
        OverrideError: an override, or an option with a range, is none that the recipe knows.
    """
    chosen, out = read_recipe(recipe, scale or "paper"), Path(out)
    if not chosen.search:
        raise ValueError(f"recipe {recipe} states no ranges to search: it has no key 'search'")
    trials = chosen.search["trials"] if trials is None else trials
    for name, number in (("trials", trials), ("epochs", epochs)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    space = {name: _distribution(name, given) for name, given in chosen.search["space"].items()}
    if epochs is not None:
        overrides = [*overrides, f"--trainer.max_epochs={epochs}"]
    # options that the recipe does not know are found out before there is a study
    score = score_of(Built(as_text(chosen.config), [*overrides, *_options(_any(space))]).model)
    about = {
        "recipe": chosen.name,
        "scale": chosen.scale,
        "score": score.name,
        "search": chosen.search["space"],
        "seed": seed,
        "overrides": list(overrides),
    }
    with open_study(out, about, score) as study:
        while (trial := _next(study, space, trials, seed)) is not None:
            folder = out / f"trial-{trial.number:03}"
            print(f"trial {trial.number + 1} of {trials}: {trial.params}", flush=True)
            try:
                options = [*overrides, *_options(trial.params)]
                best, why = _train(recipe, folder, data_dir, scale, options), "no score is finite"
            except DivergedError as error:
                best, why = None, str(error).partition(". ")[0]
            if best is None:
                trial.set_user_attr(WHY, why)
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, best)
    return read_search(out)


def _train(
    recipe: str,
    folder: Path,
    data_dir: str | Path | None,
    scale: str | None,
    overrides: Sequence[str],
) -> float | None:
    """Train a trial, or go on with it, and return its best score."""
    if all((folder / name).is_file() for name in ("run.json", "config.yaml")):
        return fit(resume=folder, data_dir=data_dir, overrides=overrides).best
    # what was cut off before its first step holds nothing
    shutil.rmtree(folder, ignore_errors=True)
    run = fit(recipe, run_dir=folder, data_dir=data_dir, scale=scale, overrides=overrides)
    return run.best


def _next(
    study: optuna.Study, space: dict[str, BaseDistribution], trials: int, seed: int
) -> optuna.Trial | None:
    """The trial that was cut off, or else a new one, until there are enough."""
    everything = study.get_trials(deepcopy=False)
    for trial in everything:
        if trial.state == TrialState.RUNNING:
            return optuna.Trial(study, trial._trial_id)
    if len(everything) >= trials:
        return None
    sequence = np.random.SeedSequence((seed, len(everything)))
    study.sampler = optuna.samplers.RandomSampler(int(sequence.generate_state(1)[0]))
    return study.ask(fixed_distributions=space)


def _distribution(option: str, given: Any) -> BaseDistribution:
    """What a recipe says about an option: ``choices``, or ``low``, ``high`` and perhaps ``log``."""
    keys = given.keys() if isinstance(given, dict) else set()
    try:
        if keys == {"choices"} and isinstance(given["choices"], list):
            return CategoricalDistribution(given["choices"])
        if {"low", "high"} <= keys <= {"low", "high", "log"}:
            return FloatDistribution(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"search.space.{option}: {error}, got {given}") from None
    raise ValueError(f"search.space.{option} must have 'choices', or 'low' and 'high', got {given}")


def _any(space: dict[str, BaseDistribution]) -> dict[str, Any]:
    """A point of the space."""
    return {
        name: d.choices[0] if isinstance(d, CategoricalDistribution) else d.low  # type: ignore[attr-defined]
        for name, d in space.items()
    }


def _options(point: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in point.items()]
