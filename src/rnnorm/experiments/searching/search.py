"""``rnnorm search``: the random search of a paper, one run folder for each trial."""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from lightning.pytorch import Callback, LightningModule, Trainer
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
)
from optuna.trial import TrialState

from rnnorm.experiments.searching.lease import Leases
from rnnorm.experiments.searching.storage import unless_lost
from rnnorm.experiments.searching.study import WHY, Search, open_study, search_of
from rnnorm.experiments.searching.workers import run_workers
from rnnorm.experiments.training.allocator import keep_freed_memory
from rnnorm.experiments.training.building import Built
from rnnorm.experiments.training.differences import differences
from rnnorm.experiments.training.finite import DivergedError
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.options import data_dir_option, option_name, training_options
from rnnorm.experiments.training.recipe import read_recipe
from rnnorm.experiments.training.run_folder import rebuild
from rnnorm.experiments.training.score import Score, score_of
from rnnorm.experiments.training.stopped import Stopped
from rnnorm.experiments.training.stopping import unbroken
from rnnorm.experiments.training.subnormals import flush_subnormals


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
    storage: str | None = None,
    workers: int = 1,
    lease: float = 60.0,
    pruner: Literal["median", "hyperband"] | None = None,
) -> Search:
    """Train a recipe with options drawn at random from the ranges that it states.

    A study that was stopped, by a kill too, goes on with the trial that it was in. The options of
    a trial are a function of the seed and the trial's number alone. Without ``storage`` one process
    at a time; with it any number, on one machine or several, each of which ends when all trials are
    finished.

    Args:
        recipe: its name; it has the key ``search``.
        out: folder of the study (``study.db``) and of its trials' run folders.
        data_dir: where the data set's files are; MNIST is downloaded without it.
        scale: ``"paper"`` (the default) or ``"small"``.
        trials: how many, those that failed and those of an earlier call included; the recipe's
            number by default.
        epochs: of each trial; the recipe's number by default.
        seed: seed of the draws.
        overrides: options of LightningCLI for all trials.
        storage: where processes meet: ``journal:FILE`` on a shared disk, ``sqlite:///FILE`` for one
            machine, ``postgresql://…`` or another database of SQLAlchemy.
        workers: processes that this call starts.
        lease: seconds after which another process takes up the trial of one that has died.
        pruner: ends trials early that promise little, after a validation; with several processes
            which ones those are depends on the order in which trials come to their ends.

    Returns:
        The trials so far. One that diverged has failed and counts.

    Raises:
        ValueError: the recipe has no ranges, the folder or the storage holds a study of something
            else, a trial's folder holds another training, several workers have no storage, an
            override is of an option that is drawn, or of ``epochs``, or a number is out of its
            range.
        FileExistsError: a trial's folder is there and holds no training.
        OverrideError: an override, or an option with a range, is none that the recipe knows.
        BlockingIOError: another process works on the study, which has no storage.
        Stopped: Ctrl-C or SIGTERM ended a training after a step, with a checkpoint.
    """
    chosen, out = read_recipe(recipe, scale or "paper"), Path(out)
    if not chosen.search:
        raise ValueError(f"recipe {recipe} states no ranges to search: it has no key 'search'")
    trials = chosen.search["trials"] if trials is None else trials
    for name, number in (("trials", trials), ("epochs", epochs), ("workers", workers)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if not 0 < lease < math.inf:
        raise ValueError(f"lease must be a number of seconds above 0, got {lease}")
    if workers > 1 and storage is None:
        raise ValueError(f"workers need a storage, such as journal:{out / 'study.journal'}")
    if pruner is not None and pruner not in _PRUNERS:
        raise ValueError(f"pruner must be one of {', '.join(_PRUNERS)}, got {pruner!r}")
    space = {name: _distribution(name, given) for name, given in chosen.search["space"].items()}
    names = {option_name(name) for name in space}
    if twice := [option for option in overrides if option_name(option) in names]:
        raise ValueError(f"{twice[0]} has no effect: the recipe's search draws that option")
    overrides = training_options(epochs, overrides=overrides)
    # options that the recipe does not know are found out before there is a study
    score = score_of(Built(chosen.config, [*overrides, *_options(_any(space))]).model)
    about = {
        "recipe": chosen.name,
        "scale": chosen.scale,
        "score": score.name,
        "search": chosen.search["space"],
        "seed": seed,
        "overrides": list(overrides),
    }
    if pruner is not None:
        about["pruner"] = pruner

    def work() -> Search:
        with unless_lost(storage), open_study(out, about, score, storage) as study:
            study.pruner = _PRUNERS[pruner]() if pruner else optuna.pruners.NopPruner()
            # enough to take; of two processes that add the same ones, the last stay untouched
            for _ in range(len(study.get_trials(deepcopy=False)), trials):
                study.enqueue_trial({})
            leases = Leases(study, lease if storage is not None else 0)
            while (trial := leases.take(trials)) is not None:
                with leases.kept(trial):
                    _run(study, trial)
            return search_of(study, out)

    def _run(study: optuna.Study, trial: optuna.Trial) -> None:
        options = _options(_draw(study, trial, space, seed))
        folder = out / f"trial-{trial.number:03}"
        print(f"trial {trial.number + 1} of {trials}: {trial.params}", flush=True)
        why = "no score is finite"
        try:
            callbacks = [_Reports(trial, score)]
            best = _train(recipe, folder, data_dir, scale, [*overrides, *options], callbacks)
        except DivergedError as error:
            best, why = None, str(error).partition(". ")[0]
        except optuna.TrialPruned:
            _tell(study, trial, None, TrialState.PRUNED)
            return
        except BlockingIOError:
            if storage is None:
                raise
            # whoever was silent trains on all the same
            return
        if best is None:
            # unless a process that took this one for dead has finished it
            with suppress(optuna.exceptions.UpdateFinishedTrialError):
                trial.set_user_attr(WHY, why)
        _tell(study, trial, best, TrialState.FAIL if best is None else TrialState.COMPLETE)

    if workers == 1:
        return work()
    with open_study(out, about, score, storage):
        # tables and study are there before anybody looks for them
        pass
    given = {
        "data_dir": data_dir,
        "scale": scale,
        "trials": trials,
        "seed": seed,
        "overrides": overrides,
        "storage": storage,
        "lease": lease,
        "pruner": pruner,
    }
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_work, args=(recipe, out), kwargs=given) for _ in range(workers)
    ]
    if run_workers(processes):
        raise Stopped(signal.SIGTERM, out)
    with open_study(out, about, score, storage) as study:
        found = search_of(study, out)
    if len(found.trials) < trials:
        codes = ", ".join(str(process.exitcode) for process in processes)
        raise RuntimeError(
            f"{len(found.trials)} of {trials} trials are finished, and no worker is left: they "
            f"ended with {codes}. The same command goes on"
        )
    return found


def _work(recipe: str, out: str | Path, **given: Any) -> None:
    """What a worker does, in a process of its own: set as that of the command."""
    keep_freed_memory()
    flush_subnormals()
    search(recipe, out, **given)


_PRUNERS: dict[str, type[optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}


class _Reports(Callback):
    """Tells the study the score of every validation, and ends a trial that it gives up.

    Raises:
        optuna.TrialPruned: it does.
    """

    def __init__(self, trial: optuna.Trial, score: Score) -> None:
        self._trial, self._score = trial, score

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell it."""
        value = trainer.callback_metrics.get(f"val/{self._score.name}")
        if value is None:
            return
        step, storage = trainer.global_step, self._trial.study._storage
        # optuna would leave a journal locked, or release the lock of another process
        with unbroken():
            # a process that died after it may have told it
            if step not in storage.get_trial(self._trial._trial_id).intermediate_values:
                self._trial.report(float(value), step)
            given_up = self._trial.should_prune()
        if given_up:
            raise optuna.TrialPruned


def _tell(study: optuna.Study, trial: optuna.Trial, value: float | None, state: TrialState) -> None:
    """Say how a trial ended, unless a process that took this one for dead has."""
    with unbroken(), suppress(optuna.exceptions.UpdateFinishedTrialError):
        study._storage.set_trial_state_values(
            trial._trial_id, state, None if value is None else [value]
        )


def _train(
    recipe: str,
    folder: Path,
    data_dir: str | Path | None,
    scale: str | None,
    overrides: Sequence[str],
    callbacks: Sequence[Callback],
) -> float | None:
    """Train a trial, or go on with it, and return its best score."""
    if all((folder / name).is_file() for name in ("run.json", "config.yaml")):
        _refuse_another(folder, recipe, scale, [*data_dir_option(data_dir), *overrides])
        return fit(
            resume=folder,
            data_dir=data_dir,
            overrides=overrides,
            callbacks=callbacks,
            one_process=True,
        ).best
    # an empty one is of a trial that was cut off before it began; fit refuses any other
    with suppress(OSError):
        folder.rmdir()
    return fit(
        recipe,
        run_dir=folder,
        data_dir=data_dir,
        scale=scale,
        overrides=overrides,
        callbacks=callbacks,
        one_process=True,
    ).best


def _refuse_another(folder: Path, recipe: str, scale: str | None, overrides: Sequence[str]) -> None:
    """Refuse to take another training for this trial, such as one of another study.

    Raises:
        ValueError: the folder holds one.
    """
    chosen = read_recipe(recipe, scale or "paper")
    built, about = rebuild(folder)
    there = {"recipe": about["recipe"], "scale": about["scale"], **_config(built)}
    config = _config(Built(chosen.config, overrides))
    here = {"recipe": chosen.name, "scale": chosen.scale, **config}
    if found := list(differences(there, here)):
        raise ValueError(
            f"{folder} holds another training than this trial: {'; '.join(found)}. Name another "
            "--out, or remove the folder"
        )


def _config(built: Built) -> dict[str, Any]:
    """All but where the data are, which may be elsewhere on another machine."""
    config = built.as_dict()
    (config["data"].get("init_args") or {}).pop("data_dir", None)
    return config


def _draw(
    study: optuna.Study, trial: optuna.Trial, space: dict[str, BaseDistribution], seed: int
) -> Mapping[str, Any]:
    """The options of a trial, those of an earlier process if one has drawn them."""
    sequence = np.random.SeedSequence((seed, trial.number))
    study.sampler = optuna.samplers.RandomSampler(int(sequence.generate_state(1)[0]))
    for name, distribution in space.items():
        trial._suggest(name, distribution)
    return trial.params


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
    return [f"--{name}={'null' if value is None else value}" for name, value in point.items()]
