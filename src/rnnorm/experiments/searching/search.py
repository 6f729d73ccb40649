"""``rnnorm search``: a paper's random search, with one run folder for each trial."""

from __future__ import annotations

import math
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import optuna
import torch

from rnnorm.experiments.console import check_at_least, shorten
from rnnorm.experiments.recipe.options import option_name, training_options
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.recipe.trust import trusting, trusts
from rnnorm.experiments.searching.lease import Leases
from rnnorm.experiments.searching.storage import naming_storage
from rnnorm.experiments.searching.study import Search, open_study, search_of
from rnnorm.experiments.searching.trial import (
    any_of,
    as_options,
    draw,
    run_trial,
    space_of,
    with_fractions,
)
from rnnorm.experiments.training.allocator import keep_freed_memory
from rnnorm.experiments.training.build import Experiment
from rnnorm.experiments.training.machine import flush_subnormals
from rnnorm.experiments.training.score import score_of
from rnnorm.experiments.training.signals import Stopped, signal_handlers
from rnnorm.experiments.writing import refuse_file

_MOST_TRIALS = 100_000
_PRUNERS: dict[str, type[optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}


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

    A study that was stopped or killed resumes with the trial that was running. The options of a
    trial are a function of the seed and the trial's number alone. Without ``storage`` one process
    works at a time; with it any number, on one machine or several, until all trials are finished.

    Args:
        recipe: recipe to train, which has the key ``search``.
        out: folder of the study and of its trials' run folders; a study in it is resumed.
            The study's file is ``study.db``.
        data_dir: folder with the data set's files; MNIST is downloaded without it.
        scale: ``"small"`` ends within minutes on two cores, but its numbers are not the paper's;
            ``"paper"`` by default.
        trials: number of trials, failed ones and those of an earlier call included; the recipe's
            number by default.
        epochs: epochs of each trial; the recipe's number by default.
        seed: seed of the draws.
        overrides: options of LightningCLI for all trials.
        storage: where several processes share a study: ``journal:FILE`` on a shared disk,
            ``sqlite:///FILE`` for one machine, ``postgresql://…`` or another database of
            SQLAlchemy.
        workers: number of processes to start on this machine.
        lease: seconds after which another process takes up the trial of one that has died.
        pruner: end trials with poor validation scores early. With several processes the choice
            depends on the order in which trials end.

    Returns:
        The trials so far; those that diverged or had no finite score are included as failed.

    Raises:
        ValueError: if the recipe has no ranges, the folder or the storage holds another study, a
            trial's folder holds another training, several workers have no storage, an override
            names an option that is drawn, or ``epochs``, or a number is out of its range.
        FileExistsError: if a trial's folder exists and holds no training.
        NotADirectoryError: if ``out`` is a file.
        OverrideError: if the recipe does not know an override, or an option with a range.
        BlockingIOError: if another process works on the study, which has no storage.
        Stopped: if Ctrl-C or SIGTERM ended a training after a step, with a checkpoint.
    """
    chosen, out = read_recipe(recipe, scale or "paper"), Path(out)
    if not chosen.search:
        raise ValueError(f"recipe {recipe} states no ranges to search: it has no key 'search'")
    trials = chosen.search["trials"] if trials is None else trials
    check_at_least(1, trials=trials, epochs=epochs, workers=workers)
    check_at_least(0, seed=seed)
    # all trials are added before the first one begins, so their number must be bounded
    if trials > _MOST_TRIALS:
        raise ValueError(f"trials must be at most {_MOST_TRIALS:,}, got {trials:,}")
    if not 0 < lease < math.inf:
        raise ValueError(f"lease must be a number of seconds above 0, got {lease}")
    if workers > 1 and storage is None:
        raise ValueError(f"workers need a storage, such as journal:{out / 'study.journal'}")
    if pruner is not None and pruner not in _PRUNERS:
        raise ValueError(f"pruner must be one of {', '.join(_PRUNERS)}, got {pruner!r}")
    space = space_of(chosen.search["space"])
    refuse_file(out)
    overrides = training_options(epochs, overrides=overrides)
    names = {option_name(name) for name in space}
    if twice := [option for option in overrides if option_name(option) in names]:
        raise ValueError(f"{twice[0]} has no effect: the recipe's search draws that option")
    space = with_fractions(space, chosen.config, overrides)
    # unknown options are refused before a study is made
    score = score_of(Experiment(chosen.config, [*overrides, *as_options(any_of(space))]).model)
    about = {
        "recipe": chosen.name,
        "scale": chosen.scale,
        "score": score.name,
        "search": chosen.search["space"],
        "seed": seed,
        "overrides": list(overrides),
        "pruner": pruner,
    }
    # with a storage, a process that counts as dead may still train: skip its folder
    passed_over = () if storage is None else (BlockingIOError,)

    open_again = partial(open_study, out, about, score, storage)

    def work() -> Search:
        with naming_storage(storage), open_again() as study:
            study.pruner = _PRUNERS[pruner]() if pruner else optuna.pruners.NopPruner()
            # two processes may both add trials; those beyond the number are never taken
            for _ in range(len(study.get_trials(deepcopy=False)), trials):
                study.enqueue_trial({})
            leases = Leases(study, lease if storage is not None else 0)
            while (trial := leases.take(trials)) is not None:
                with leases.kept(trial), suppress(*passed_over):
                    options = [*overrides, *as_options(draw(trial, space, seed))]
                    name = f"trial {trial.number} ({trial.number + 1} of {trials})"
                    print(f"{name}: {trial.params}", flush=True)
                    folder = out / f"trial-{trial.number:03}"
                    run_trial(trial, score, recipe, folder, data_dir, scale, options)
            return search_of(study, out)

    if workers == 1:
        return work()
    return _share(
        workers,
        open_again,
        recipe,
        out,
        trials,
        data_dir=data_dir,
        scale=scale,
        seed=seed,
        overrides=overrides,
        storage=storage,
        lease=lease,
        pruner=pruner,
    )


def _share(
    workers: int,
    open_again: Callable[[], AbstractContextManager[optuna.Study]],
    recipe: str,
    out: Path,
    trials: int,
    **given: Any,
) -> Search:
    """Let processes of this machine share the trials of a study.

    Args:
        workers: number of processes.
        open_again: opens the study.
        recipe: recipe to train.
        out: folder of the trials' run folders.
        trials: number of trials.
        **given: the other arguments of :func:`search`.

    Raises:
        Stopped: if a SIGTERM ended the processes.
        RuntimeError: if the processes ended before all trials were finished.
    """
    with open_again():
        # make tables and study before the workers look for them
        pass
    context = multiprocessing.get_context("spawn")
    args = (recipe, out, trials, max(1, torch.get_num_threads() // workers), trusts())
    processes = [context.Process(target=_work, args=args, kwargs=given) for _ in range(workers)]
    if run_workers(processes):
        raise Stopped(signal.SIGTERM, out)
    with open_again() as study:
        found = search_of(study, out)
    if len(found.trials) < trials:
        codes = [process.exitcode for process in processes]
        finished = f"{len(found.trials)} of {trials} trials are finished"
        if set(codes) == {1}:
            raise RuntimeError(f"{finished}: every worker was refused, as it says above")
        raise RuntimeError(
            f"{finished}, and no worker is left: they ended with {', '.join(map(str, codes))}. "
            "Repeat the command to resume"
        )
    return found


def _work(recipe: str, out: Path, trials: int, threads: int, trust: bool, **given: Any) -> None:
    """Run a worker in its own process, set up like the command's process."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    flush_subnormals()
    try:
        with trusting(trust):
            search(recipe, out, trials=trials, **given)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"a worker stops: {shorten(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        # multiprocessing would print its traceback
        sys.exit(130)


# seconds that workers have to end by themselves: schedulers may send them a SIGTERM of their own,
# and after a second one a worker would not write its checkpoint
_GRACE = 5.0


def run_workers(processes: Sequence[BaseProcess]) -> bool:
    """Start processes and wait for their ends; pass a SIGTERM on to them.

    A Ctrl-C reaches all processes of a terminal by itself.

    Returns:
        Whether a SIGTERM was received.
    """
    times: list[float] = []

    def received(*_: object) -> None:
        times.append(time.monotonic())

    before = signal_handlers().get(signal.SIGTERM)
    if before is not None:
        signal.signal(signal.SIGTERM, received)
    try:
        for process in processes:
            process.start()
        passed_on = 0
        while any(process.is_alive() for process in processes):
            time.sleep(0.2)
            # a second SIGTERM is passed on at once
            if len(times) > max(passed_on, 1) or (
                len(times) > passed_on and time.monotonic() - times[0] > _GRACE
            ):
                passed_on = len(times)
                for process in processes:
                    process.terminate()
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return bool(times)
