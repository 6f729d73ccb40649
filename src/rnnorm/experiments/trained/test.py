"""Measure a trained model on the test set: what ``rnnorm test`` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer

from rnnorm.diagnostics import batch_normalised, batch_statistics
from rnnorm.experiments.models.recurrent_model import RecurrentModel
from rnnorm.experiments.trained.load import USE_MAY_CHANGE, load_trained
from rnnorm.experiments.trained.measurement import Measurement, Statistics, keep_measurements
from rnnorm.experiments.training.build import Experiment, quiet_lightning
from rnnorm.experiments.training.checkpoint import data_state
from rnnorm.experiments.training.progress import progress_bars
from rnnorm.experiments.training.run_names import is_run
from rnnorm.experiments.training.score import SAMPLING_ERROR
from rnnorm.experiments.training.signals import OwnHandlers, restore_handlers
from rnnorm.lightning import ExactStatistics, estimate_in_trainer


def measure(
    run: str | Path,
    checkpoint: str | Path | None = None,
    *,
    beside: Sequence[str | Path] = (),
    data_dir: str | Path | None = None,
    scale: str | None = None,
    estimate: bool = False,
    statistics: Statistics | None = None,
    lengths: Sequence[int] = (),
    overrides: Sequence[str] = (),
    tell: Callable[[Measurement], object] | None = None,
) -> list[Measurement]:
    """Measure a trained model on the test set.

    The results of a run folder's own checkpoint are kept in the folder at the end. If they are not
    kept, a line on stderr says so.

    Args:
        run: run folder of the training, or a recipe if a checkpoint is given. The run folder knows
            its recipe, scale and overrides.
        checkpoint: a ``.ckpt`` file to use instead of the run's best checkpoint.
        beside: more run folders, to measure the mean of the predictions of all runs, which is not
            kept. Their data must be the same, and their best checkpoints are used.
        data_dir: folder with the data set's files; MNIST is downloaded without it.
        scale: scale that a checkpoint outside its run folder was trained at; ``"paper"`` by
            default.
        estimate: first estimate the population statistics again, as the exact average over the
            training set. They are taken (:func:`rnnorm.update_bn`) in minibatches of as many rows
            as the recipe's ``ExactStatistics`` takes.
        statistics: statistics to normalise with; by default one after the other, where the model
            has batch statistics.
            ``"batch"`` are those of each test minibatch, and leave out minibatches of too few rows.
        lengths: measure on windows of each of these lengths instead (only for texts that are read
            in windows). Every window starts from the initial state. What is left of the text is
            left out.
        overrides: options of LightningCLI.
        tell: called with each measurement as soon as it is there, before anything is written.

    Returns:
        A measurement for each length and each kind of statistics.

    Raises:
        ValueError: if the checkpoint does not fit the model and data, the model or data lack the
            statistics asked for, a length leaves too few windows, or the trainer refuses its
            arguments; if predictions cannot be averaged, or a checkpoint is given with several
            runs.
        FileNotFoundError: if the checkpoint is missing, or ``data_dir`` lacks files.
    """
    if beside and checkpoint is not None:
        raise ValueError(
            f"checkpoint must be None with several runs, got {checkpoint}: each run's best one is "
            "used"
        )
    load = partial(
        load_trained,
        data_dir=data_dir,
        scale=scale,
        overrides=overrides,
        estimate=estimate,
        by_trainer=True,
    )
    experiment, state, path, folder, _ = load(run, checkpoint)
    others = [load(other) for other in beside]
    for name, other in zip(beside, others, strict=True):
        _take_in(experiment, other.experiment, name)
    experiment.set_up("test")
    for each in (state, *(other.state for other in others)):
        experiment.datamodule.load_state_dict(data_state(each, experiment.datamodule))
    loaders = _loaders(experiment, lengths)
    kinds = _kinds(experiment, statistics, loaders[0][1])
    # the first test estimates the statistics, the others find them in the model
    first: list[Callback] = [EstimateStatistics(experiment)] if estimate else []
    measured: list[Measurement] = []
    for length, loader in loaders:
        for kind in kinds:
            measurement = Measurement(
                checkpoint=path.resolve().name,
                epoch=state["epoch"] + 1,
                statistics=kind,
                length=length,
                estimated=estimate,
                overrides=tuple(overrides),
                metrics=_test(experiment, loader, kind, [] if measured else first),
                step=state["global_step"],
            )
            measured.append(measurement)
            if tell is not None:
                tell(measurement)
    if beside:
        print("not kept: the predictions are of several runs", file=sys.stderr, flush=True)
    elif folder is not None:
        try:
            keep_measurements(folder, measured)
        except OSError as error:
            # the run may be another user's, or on a read-only disk
            print(error.strerror, file=sys.stderr, flush=True)
    else:
        where = Path(run) / "checkpoints" if is_run(run) else "a run folder"
        print(f"not kept: {path} does not lie in {where}", file=sys.stderr, flush=True)
    return measured


def _beside(model: LightningModule) -> list[LightningModule]:
    """Return the list of the models whose predictions are averaged with a model's own."""
    models: list[LightningModule] = getattr(model, "beside", [])
    return models


def _take_in(one: Experiment, other: Experiment, run: str | Path) -> None:
    """Put the model of another run beside that of the first.

    Raises:
        ValueError: if the models do not predict classes, or the data are others.
    """
    models, data = (one.model, other.model), (one.datamodule, other.datamodule)
    for model in models:
        if not isinstance(model, RecurrentModel) or type(model).predict is RecurrentModel.predict:
            raise ValueError(
                "several runs must predict classes, of which the mean is taken: "
                f"{type(model).__name__} does not"
            )
    ours, theirs = ({**dict(d.hparams), "data": type(d).__name__} for d in data)
    differ = [
        f"{name} is {ours.get(name)!r} and {theirs.get(name)!r}"
        for name in dict.fromkeys((*ours, *theirs))
        if name not in USE_MAY_CHANGE and ours.get(name) != theirs.get(name)
    ]
    if differ:
        raise ValueError(f"{run} must have the data of the first run: {'; '.join(differ)}")
    _beside(one.model).append(other.model)


def _loaders(
    experiment: Experiment, lengths: Sequence[int]
) -> list[tuple[int | None, Iterable[Any]]]:
    """Return window lengths with their loaders, or None with that of the test set."""
    if not lengths:
        return [(None, experiment.datamodule.test_dataloader())]
    windows = getattr(experiment.datamodule, "test_windows", None)
    if windows is None:
        raise ValueError(
            "lengths are for a text that is read in windows: this recipe's data have lengths of "
            "their own"
        )
    # the same minibatches for both kinds of statistics
    loaders = [(length, SeveralRows(windows(length))) for length in lengths]
    for length, loader in loaders:
        if next(iter(loader), None) is None:
            raise ValueError(
                "lengths must leave a minibatch (data.eval_batch_size) at least 2 windows of the "
                f"test text, got {length}"
            )
    return list(loaders)


def _kinds(
    experiment: Experiment, asked: Statistics | None, loader: Iterable[Any]
) -> Sequence[Statistics | None]:
    """Return the kinds of statistics to measure with, checked against the model and data."""
    if not any(map(batch_normalised, (experiment.model, *_beside(experiment.model)))):
        if asked is not None:
            raise ValueError(f"statistics must be None, got {asked!r}: the model has none")
        return [None]
    rows = next(iter(SeveralRows(loader)), None) is not None
    if asked == "batch" and not rows:
        raise ValueError(
            "statistics must be 'population' where no minibatch has two rows, got 'batch'. A text "
            "that is one stream can be measured by windows, with lengths; other data have as many "
            "rows as data.eval_batch_size says"
        )
    if asked is None:
        return ["population", "batch"] if rows else ["population"]
    return [asked]


def _test(
    experiment: Experiment,
    loader: Iterable[Any],
    statistics: Statistics | None,
    first: Sequence[Callback],
) -> dict[str, float]:
    """Run the trainer's test with one kind of statistics and return the metrics by name.

    Args:
        experiment: model and data.
        loader: minibatches of the test.
        statistics: the kind of statistics.
        first: callbacks that are called before the statistics of minibatches are switched on.
    """
    batch = statistics == "batch"
    signals = OwnHandlers()
    shown = [*progress_bars(), *([BatchStatistics()] if batch else [])]
    callbacks = [MoveOtherModels(), *first, *shown, signals]
    # one device, on however many the training ran
    trainer = experiment.make_trainer(callbacks, devices=1, num_nodes=1, strategy="auto")
    loader = SeveralRows(loader) if batch else loader
    try:
        with quiet_lightning():
            metrics = trainer.test(experiment.model, dataloaders=loader, verbose=False)
    except MisconfigurationException as error:
        raise ValueError(str(error)) from None
    except SystemExit as ended:
        # Lightning turns Ctrl-C into SystemExit
        if isinstance(ended.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        restore_handlers(signals.before)
    if not metrics:
        raise ValueError("trainer.limit_test_batches leaves none of the test set's minibatches")
    # a single row has a sampling error of nan
    return {n: v for n, v in metrics[0].items() if n != SAMPLING_ERROR or isfinite(v)}


class MoveOtherModels(Callback):
    """Callback that takes the models beside a model to its device, in evaluation mode."""

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the other models the device and the type of the model's weights."""
        for other in _beside(pl_module):
            other.to(next(pl_module.parameters())).eval()


class EstimateStatistics(Callback):
    """Callback that estimates the statistics on the training set, on the trainer's device.

    Args:
        experiment: model and data; the recipe's ``ExactStatistics`` chooses the minibatches.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._data = experiment.datamodule
        given = experiment.config_init["trainer"]["callbacks"] or []
        exact = (c for c in given if isinstance(c, ExactStatistics))
        self._exact = next(exact, ExactStatistics())

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Estimate the statistics of all models in the trainer's precision."""
        models = [pl_module, *_beside(pl_module)]
        for model in list(filter(batch_normalised, models)) or models[:1]:
            minibatches = self._exact.minibatches(self._data.train_dataloader())
            estimate_in_trainer(trainer, minibatches, model)


class BatchStatistics(Callback):
    """Callback that tests with the statistics of each minibatch."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch the statistics of each minibatch on."""
        for model in (pl_module, *_beside(pl_module)):
            self._stack.enter_context(batch_statistics(model))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switch the statistics of each minibatch off."""
        self._stack.close()


class SeveralRows:
    """The minibatches of a loader that have at least two rows, as batch statistics need.

    Args:
        loader: minibatches whose first element is ``(T, B, ...)``.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """Yield the minibatches in the loader's order."""
        return (batch for batch in self.loader if batch[0].shape[1] >= 2)
