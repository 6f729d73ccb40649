"""One trial of a search: the options drawn, the training, and its reports to the study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from lightning.pytorch import Callback, LightningModule, Trainer
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from rnnorm.experiments.recipe.label import differences
from rnnorm.experiments.recipe.options import data_dir_option
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.searching.study import WHY
from rnnorm.experiments.training.build import FILES, Experiment, place_options
from rnnorm.experiments.training.finite import DivergedError
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.folder import rebuild, refuse_existing
from rnnorm.experiments.training.run_names import is_run
from rnnorm.experiments.training.score import Score
from rnnorm.experiments.training.signals import signals_deferred


def run_trial(
    trial: optuna.Trial,
    score: Score,
    recipe: str,
    folder: Path,
    data_dir: str | Path | None,
    scale: str | None,
    overrides: Sequence[str],
) -> None:
    """Train a trial in its folder, or resume its training, and tell the study how it ended.

    Raises:
        ValueError: if the folder holds another training.
        BlockingIOError: if another process trains in the folder.
        Stopped: if Ctrl-C or SIGTERM ended the training after a step, with a checkpoint.
    """
    why = "no score is finite"
    try:
        best = _train(recipe, folder, data_dir, scale, overrides, [_Reports(trial, score)])
    except DivergedError as error:
        best, why = None, str(error).partition(". ")[0]
    except optuna.TrialPruned:
        _tell(trial, None, TrialState.PRUNED)
        return
    if best is None:
        # another process may have taken this one for dead and finished the trial
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr(WHY, why)
    _tell(trial, best, TrialState.FAIL if best is None else TrialState.COMPLETE)


class _Reports(Callback):
    """Callback that reports the score of every validation, and ends a trial that is pruned.

    Raises:
        optuna.TrialPruned: if the pruner ends the trial.
    """

    def __init__(self, trial: optuna.Trial, score: Score) -> None:
        self._trial, self._score = trial, score

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the score to the study, and ask whether to prune the trial."""
        value = self._score.validated(trainer.callback_metrics)
        if value is None:
            return
        step, storage = trainer.global_step, self._trial.study._storage
        # a signal within optuna would leave a journal locked, or release another process's lock
        with signals_deferred():
            # a process that has died may have reported this step already
            if step not in storage.get_trial(self._trial._trial_id).intermediate_values:
                self._trial.report(value, step)
            given_up = self._trial.should_prune()
        if given_up:
            raise optuna.TrialPruned


def _tell(trial: optuna.Trial, value: float | None, state: TrialState) -> None:
    """Tell the study how a trial ended, unless another process has finished the trial."""
    values = None if value is None else [value]
    with signals_deferred(), suppress(optuna.exceptions.UpdateFinishedTrialError):
        trial.study._storage.set_trial_state_values(trial._trial_id, state, values)


def _train(
    recipe: str,
    folder: Path,
    data_dir: str | Path | None,
    scale: str | None,
    overrides: Sequence[str],
    callbacks: Sequence[Callback],
) -> float | None:
    """Start or resume the training of a trial, and return its best score."""
    started = is_run(folder)
    places: list[str] = []
    if started:
        given = [*data_dir_option(data_dir), *overrides]
        config = _refuse_another(folder, recipe, scale, given)
        # the run folder names the places of the machine that began the training
        places = place_options(config)
    else:
        refuse_existing(folder, "--out")
    return fit(
        recipe=recipe,
        run_dir=None if started else folder,
        resume=folder if started else None,
        data_dir=data_dir,
        scale=scale,
        overrides=[*overrides, *places],
        callbacks=callbacks,
        one_process=True,
    ).best


def _refuse_another(
    folder: Path, recipe: str, scale: str | None, overrides: Sequence[str]
) -> dict[str, Any]:
    """Refuse a folder with another training than this trial's, such as one of another study.

    Returns:
        The whole configuration of this trial.

    Raises:
        ValueError: if the folder holds another training.
    """
    chosen = read_recipe(recipe, scale or "paper")
    experiment, about = rebuild(folder)
    existing = {"recipe": about["recipe"], "scale": about["scale"], **_config(experiment)}
    trial = Experiment(chosen.config, overrides)
    expected = {"recipe": chosen.name, "scale": chosen.scale, **_config(trial)}
    if found := list(differences(existing, expected)):
        raise ValueError(
            f"{folder} holds another training than this trial: {'; '.join(found)}. Name another "
            "--out, or remove the folder"
        )
    return trial.as_dict()


def _config(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration without the data's places, which may differ between machines."""
    config = experiment.as_dict()
    for name in ("data_dir", *FILES):
        (config["data"].get("init_args") or {}).pop(name, None)
    return config


def space_of(ranges: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Read a recipe's ``search.space``: for each option ``choices``, or ``low``, ``high``, ``log``.

    Raises:
        ValueError: if an option has no name or another form, or its range is invalid.
    """
    if wrong := [option for option in ranges if not isinstance(option, str)]:
        raise ValueError(f"search.space must name options, got {wrong[0]!r}")
    return {option: _distribution(option, given) for option, given in ranges.items()}


def _distribution(option: str, given: Any) -> BaseDistribution:
    """Convert an option's range to a distribution of optuna."""
    keys = given.keys() if isinstance(given, dict) else set()
    try:
        if keys == {"choices"} and isinstance(given["choices"], list):
            return CategoricalDistribution(given["choices"])
        if {"low", "high"} <= keys <= {"low", "high", "log"}:
            for name in ("low", "high"):
                number = given[name]
                if isinstance(number, bool) or not math.isfinite(number):
                    raise ValueError(f"{name} must be a finite number")
            whole = isinstance(given["low"], int) and isinstance(given["high"], int)
            return IntDistribution(**given) if whole else FloatDistribution(**given)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"search.space.{option}: {error}, got {given}") from None
    raise ValueError(f"search.space.{option} must have 'choices', or 'low' and 'high', got {given}")


def with_fractions(
    space: Mapping[str, BaseDistribution], config: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, BaseDistribution]:
    """Draw numbers between whole ends, not whole ones alone, where the option takes them.

    Args:
        space: the ranges of the options.
        config: the configuration of the recipe.
        overrides: the options that are not drawn.
    """
    made = dict(space)
    for name, whole in space.items():
        if isinstance(whole, IntDistribution):
            point = {**any_of(space), name: whole.low + 0.5}
            with suppress(ValueError):
                Experiment(config, [*overrides, *as_options(point)]).make_trainer([])
                made[name] = FloatDistribution(whole.low, whole.high, log=whole.log)
    return made


def any_of(space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return some point of the space, to check its options."""
    return {
        name: d.choices[0] if isinstance(d, CategoricalDistribution) else d.low  # type: ignore[attr-defined]
        for name, d in space.items()
    }


def draw(
    trial: optuna.Trial, space: Mapping[str, BaseDistribution], seed: int
) -> Mapping[str, Any]:
    """Draw the options of a trial, or return those that an earlier process has drawn."""
    sequence = np.random.SeedSequence((seed, trial.number))
    trial.study.sampler = optuna.samplers.RandomSampler(int(sequence.generate_state(1)[0]))
    for name, distribution in space.items():
        trial._suggest(name, distribution)
    return trial.params


def as_options(point: Mapping[str, Any]) -> list[str]:
    """Format a point as options of LightningCLI."""
    return [f"--{name}={'null' if value is None else value}" for name, value in point.items()]
