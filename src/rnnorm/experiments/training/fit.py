"""Train a recipe, as ``rnnorm fit`` does."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from rnnorm.experiments.console import check_at_least, shorten
from rnnorm.experiments.recipe.options import data_dir_option, training_options
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.build import Experiment, quiet_lightning
from rnnorm.experiments.training.checkpoint import data_state, load_weights, read_checkpoint
from rnnorm.experiments.training.checkpointing import KeepLastAndBest
from rnnorm.experiments.training.clock import Clock
from rnnorm.experiments.training.ddp import check_processes, prepare_processes, refuse_trainer
from rnnorm.experiments.training.finite import DivergedError, StopIfNotFinite
from rnnorm.experiments.training.folder import (
    default_folder,
    describe,
    only_process,
    rebuild,
    refuse_existing,
    start_run,
)
from rnnorm.experiments.training.machine import Places
from rnnorm.experiments.training.metrics import MetricsFile, TrainingScores, quiet_writer_thread
from rnnorm.experiments.training.progress import (
    SAMPLES,
    ProgressLines,
    Samples,
    StepsBar,
    TimeAhead,
    check_samples,
)
from rnnorm.experiments.training.resume import (
    AccumulateAsScheduled,
    RandomState,
    StepsOnPlateau,
    refuse_another_training,
    starting_point,
)
from rnnorm.experiments.training.run import Run, introduction
from rnnorm.experiments.training.run_names import LAST, checkpoint_of, is_run, refuse_several
from rnnorm.experiments.training.score import score_of
from rnnorm.experiments.training.signals import Stopped, StopSignals
from rnnorm.experiments.writing import write_whole

# errors of callbacks at the start, such as for an argument or a package that is missing
_MISTAKES = (AttributeError, ImportError, LookupError, TypeError)


def fit(
    recipe: str | None = None,
    *,
    data_dir: str | Path | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    start: str | Path | None = None,
    scale: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    every_n_steps: int = 100,
    samples: int | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    one_process: bool = False,
) -> Run:
    """Train a recipe in a new run folder, or resume the training of a run folder.

    A resumed training gives the same weights, bit for bit, as one that was never interrupted.

    With several devices, or under torchrun, each process trains on its rows of every minibatch,
    with statistics over all rows (:func:`rnnorm.synchronize`), and the first process writes.

    Args:
        recipe: the recipe to train; it may be left out with ``resume``.
        data_dir: folder with the data set's files; MNIST is downloaded without it.
        run_dir: a new folder for this run; ``runs/RECIPE`` by default.
        resume: run folder of a training to resume, with the settings of its ``config.yaml``.
        start: begin with the weights and statistics of this run's best epoch, or of a ``.ckpt``
            file.
        scale: ``"small"`` ends within minutes on two cores, but its numbers are not the paper's;
            ``"paper"`` by default.
        epochs: passes over the training data; the recipe's number by default.
        lr: learning rate; the recipe's by default.
        batch_size: rows of a training minibatch; the recipe's number by default.
        seed: seed of the weights and the data; 1 by default.
        every_n_steps: steps between two checkpoints, besides one after every epoch.
        samples: number of sample texts to print after each epoch and to append to ``samples.txt``.
            None by default; a resumed training writes as many as before.
        overrides: options of LightningCLI, such as ``"--trainer.max_epochs=3"``.
        callbacks: added to the trainer's callbacks.
        quiet: print nothing, unless the training is stopped.
        one_process: refuse several devices.

    Returns:
        The finished training.

    Raises:
        ValueError: if the recipe is unknown, or the folder to resume is of another recipe, model,
            order of the data, optimiser or schedule, or had another number of processes; ``start``
            is of other layers or data, or given with ``resume``; ``every_n_steps < 1``; ``samples``
            is below 0, or the model writes none; the trainer refuses its arguments; or a callback
            fails before the first step.
        FileExistsError: if ``run_dir`` exists.
        FileNotFoundError: if there is no run to resume, or ``data_dir`` lacks files.
        DivergedError: if the loss, a gradient, a parameter or a statistic is not finite.
        BlockingIOError: if another process trains in the folder.
        OSError: if a checkpoint could not be written; the checkpoint before it is whole.
        Stopped: if Ctrl-C or SIGTERM ended the training after a step, with a checkpoint.
    """
    check_at_least(1, every_n_steps=every_n_steps)
    check_at_least(0, samples=samples)
    # only the first of several processes makes the run folder and writes
    writes = one_process or processes.is_first()
    quiet = quiet or not writes
    changed = training_options(epochs, lr, batch_size, seed, overrides)
    data = data_dir_option(data_dir)
    if resume is None:
        folder, experiment, about = _new(recipe, scale, run_dir, start, data, changed, writes)
    else:
        folder = _begun(resume, run_dir, start)
        experiment, about = rebuild(folder, recipe, scale, [*data, *changed])
    refuse_trainer(experiment)
    if samples is not None:
        about["samples"] = samples
    if about.get("samples"):
        check_samples(experiment.model)
    with ExitStack() as locks:
        if resume is not None and writes:
            locks.enter_context(only_process(folder))
        last, step, random, before = starting_point(folder, experiment)
        if resume is not None and (data or changed):
            refuse_another_training(folder, experiment)
        # missing or broken data must not leave a run folder behind
        experiment.set_up("fit")
        if last is None and "start" in about:
            start_with(experiment, Path(about["start"]))
        score, clock, signals = score_of(experiment.model), Clock(), StopSignals(folder)
        keep = KeepLastAndBest(folder / "checkpoints", score, every_n_steps, signals)
        if last is not None:
            keep.step, keep.broken = step, last.name != LAST
        accepted = _Accepted(experiment, folder, resumed=resume is not None)
        shown = [] if quiet else [ProgressLines(clock), TimeAhead(about, clock), StepsBar(score)]
        if samples is None and before is not None:
            about["samples"] = before
        if (count := about.get("samples")) is not None:
            shown.append(Samples(folder / SAMPLES, count, quiet, last_kept=step))
        trainer = experiment.make_trainer(
            [
                clock,
                StopIfNotFinite(),
                RandomState(),
                StepsOnPlateau(),
                Places(),
                TrainingScores(),
                *shown,
                *callbacks,
                AccumulateAsScheduled(),
                keep,
                accepted,
            ],
            # a callback of the recipe may pass over the training set, which signals end
            before=[signals],
            one_process=one_process,
            default_root_dir=folder,
        )
        signals.wait = trainer.num_nodes == 1
        if last is not None:
            check_processes(random, last, trainer.world_size)
        # lightning restores weights first, which would round float64 to float32
        trainer.precision_plugin.convert_module(experiment.model)
        prepare_processes(experiment, trainer)
        if resume is None and writes:
            start_run(folder, about, experiment.as_yaml())
            locks.enter_context(only_process(folder))
        try:
            # from here on a signal leaves a folder that can be resumed
            with signals:
                if not quiet:
                    print(introduction(about, experiment, trainer, folder), flush=True)
                    if resume is not None:
                        print(f"resuming at step {step}", flush=True)
                if writes:
                    # loggers write into the folder, so it must exist and be locked
                    trainer.loggers = [
                        MetricsFile(folder / "metrics.csv", clock, first_dropped=step),
                        TensorBoardLogger(
                            folder, "", "tensorboard", default_hp_metric=False, purge_step=step
                        ),
                    ]
                _train(experiment, trainer, keep, last, accepted)
        except DivergedError:
            raise
        except (*_MISTAKES, ValueError, RuntimeError) as error:
            if accepted.trained:
                raise
            if resume is None and writes:
                # so that the corrected command may take the folder's name
                shutil.rmtree(folder)
            if not isinstance(error, _MISTAKES):
                raise
            which = "first" if resume is None else "next"
            reason = f"{type(error).__name__}: {shorten(error)}"
            raise ValueError(f"the training failed before its {which} step: {reason}") from error
    return Run(folder, experiment, trainer, keep.best, keep.best_epoch, clock.seconds)


def _new(
    recipe: str | None,
    scale: str | None,
    run_dir: str | Path | None,
    start: str | Path | None,
    data: Sequence[str],
    changed: Sequence[str],
    writes: bool,
) -> tuple[Path, Experiment, dict[str, Any]]:
    """Return the run folder of a new training, its model and data, and its ``run.json``.

    Raises:
        ValueError: if the recipe does not exist, or is not named.
        FileExistsError: if the run folder exists.
    """
    if recipe is None:
        raise ValueError("fit needs a recipe's name, or the run folder to resume")
    chosen = read_recipe(recipe, scale or "paper")
    folder = Path(run_dir) if run_dir is not None else default_folder(chosen)
    if writes:
        refuse_existing(folder)
    # the folder of the data is no change to the recipe
    experiment, about = Experiment(chosen.config, [*data, *changed]), describe(chosen, changed)
    if start is not None:
        about["start"] = str(start_file(start))
    return folder, experiment, about


def _begun(resume: str | Path, run_dir: str | Path | None, start: str | Path | None) -> Path:
    """Return the run folder of a training to resume.

    Raises:
        ValueError: if ``run_dir`` is another folder, ``start`` is given, or the folder is one of
            runs.
    """
    folder = Path(resume)
    if run_dir is not None and Path(run_dir).resolve() != folder.resolve():
        raise ValueError(f"--run-dir {run_dir} and --resume {folder} are different folders")
    if start is not None:
        raise ValueError(f"--start {start} must be left out with --resume: it has begun")
    refuse_several(folder)
    return folder


class _Accepted(Callback):
    """Notes that trainer and optimiser accept a training, and writes what a resumed one changes."""

    def __init__(self, experiment: Experiment, folder: Path, *, resumed: bool) -> None:
        self._experiment, self.folder, self._resumed = experiment, folder, resumed
        self.started = self.trained = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the configuration of a resumed training, whose checkpoint is loaded."""
        if self._resumed and trainer.is_global_zero:
            write_whole(self.folder / "config.yaml", self._experiment.as_yaml().encode())
        self.started = True

    def on_train_batch_end(self, *_: object) -> None:
        """Note that the training has taken a minibatch."""
        self.trained = True


def _train(
    experiment: Experiment,
    trainer: Trainer,
    keep: KeepLastAndBest,
    last: Path | None,
    accepted: _Accepted,
) -> None:
    try:
        with quiet_lightning(), quiet_writer_thread():
            trainer.fit(
                experiment.model,
                datamodule=experiment.datamodule,
                ckpt_path=last,
                weights_only=True,
            )
        keep.signals.check()
    except MisconfigurationException as error:
        raise ValueError(str(error)) from None
    except DivergedError as error:
        raise DivergedError(f"{error}. {_kept(keep)}") from None
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if last is None or accepted.started:
            raise
        reason = f"{type(error).__name__}: {shorten(error)}"
        raise ValueError(f"cannot resume from {last}: {reason}") from error
    except (SystemExit, OSError) as error:
        if processes.is_first():
            print(f"stopped. {_kept(keep)}", flush=True)
        # lightning would exit with 1 after a second Ctrl-C
        if (came := keep.signals.came) is not None:
            raise Stopped(came, accepted.folder) from None
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            raise OSError(error.errno, error.strerror, str(accepted.folder)) from error
        raise


def _kept(keep: KeepLastAndBest) -> str:
    if keep.step is None:
        return "No checkpoint had been written yet"
    return f"The last good checkpoint is {keep.folder / LAST} (step {keep.step})"


def start_file(start: str | Path) -> Path:
    """Return the absolute path of a ``.ckpt`` file, or of a run folder's checkpoint.

    Raises:
        ValueError: if ``start`` is a folder but not a run folder.
        FileNotFoundError: if the run folder has no checkpoint yet.
    """
    folder = is_run(start) or Path(start).is_dir()
    return checkpoint_of(start, None if folder else start).resolve()


def start_with(experiment: Experiment, start: Path) -> None:
    """Load a checkpoint's weights, statistics and data state, after the data are set up.

    The optimiser and the count of epochs start from scratch.

    Raises:
        ValueError: if the checkpoint is of other layers or of other data.
        FileNotFoundError: if the checkpoint does not exist.
    """
    state = read_checkpoint(start)
    load_weights(experiment.model, state, start)
    experiment.datamodule.load_state_dict(data_state(state, experiment.datamodule))
