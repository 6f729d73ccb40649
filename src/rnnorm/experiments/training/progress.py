"""Show the time, a bar, a line per epoch and samples while a training runs."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from tqdm import tqdm

from rnnorm.experiments.console import counted, duration
from rnnorm.experiments.data.text_file import as_text
from rnnorm.experiments.files import file_exists, unpack
from rnnorm.experiments.private_apis import callbacks_of
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.clock import Clock, StopAfter
from rnnorm.experiments.training.score import Metric, Score, score_of
from rnnorm.experiments.writing import write_whole
from rnnorm.kernels import dispatch
from rnnorm.layers.normalised_module import temporarily


def progress_bars() -> list[Callback]:
    """Return the progress bar of a test on a terminal, or nothing elsewhere."""
    return [TQDMProgressBar()] if sys.stderr.isatty() else []


class StepsBar(Callback):
    """One bar over the steps of a whole training, or of several; on a terminal alone.

    Args:
        score: shown after each validation.
        bar: the bar of several trainings, which the caller closes; by default a new bar.
        name: the training's name on the bar.
        trainings: number of trainings that share the bar.
    """

    def __init__(
        self, score: Score, bar: Any = None, name: str = "training", trainings: int = 1
    ) -> None:
        self._score, self._name, self._trainings = score, name, trainings
        self._bar, self._owned, self._step = bar, bar is None, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the bar's total, its name and the steps done before a resumption."""
        self._step = trainer.global_step
        if self._bar is None:
            self._bar = steps_bar()
        if self._bar.disable:
            return
        steps = _all_steps(trainer)
        if not self._bar.total and math.isfinite(steps):
            self._bar.reset(total=int(steps) * self._trainings)
        # steps before a resumption must not count as fast ones
        self._bar.n += self._step
        self._bar.initial += self._step
        self._bar.set_description(self._name)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Advance the bar by the steps taken."""
        self._bar.update(trainer.global_step - self._step)
        self._step = trainer.global_step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the validation score on the bar."""
        value = self._score.validated(trainer.callback_metrics)
        if value is not None and self._bar is not None:
            self._bar.set_postfix_str(self._score.format("validation", value))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the bar when the training is over."""
        self._close()

    def on_exception(self, *_: Any) -> None:
        """Close the bar of a stopped training, so that messages stand below it."""
        self._close()

    def _close(self) -> None:
        if self._owned and self._bar is not None:
            self._bar.close()


def _all_steps(trainer: Trainer) -> float:
    """Return the steps of the whole training, or infinity if no number of steps ends it."""
    limits = [callback.steps for callback in callbacks_of(trainer, StopAfter)]
    return min([trainer.estimated_stepping_batches, *limits])


def steps_bar() -> Any:
    """Return a bar that counts steps, disabled without a terminal."""
    return tqdm(disable=not sys.stderr.isatty(), unit="step", leave=False)


class TimeAhead(Callback):
    """Says, after its first steps, how long a training will take.

    Args:
        about: the training's ``run.json``.
        clock: counts the time of the training steps.
    """

    def __init__(self, about: Mapping[str, Any], clock: Clock) -> None:
        self._about, self._clock = about, clock
        self._first: tuple[int, float] | None = None
        self._told = False

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Measure the first steps, and print the time to go once."""
        if self._told:
            return
        now = trainer.global_step, self._clock.seconds
        # the first step includes one-time setup
        first = self._first = self._first or now
        steps, seconds = now[0] - first[0], now[1] - first[1]
        # measure 20 steps, or as many as 10 seconds hold
        if steps < 1 or (steps < 20 and seconds < 10):
            return
        self._told = True
        left = _all_steps(trainer) - now[0]
        if math.isfinite(left) and left > 0:
            tqdm.write(self._sentence(int(left), seconds / steps))
            sys.stdout.flush()

    def _sentence(self, steps: int, seconds: float) -> str:
        each = f"{counted(steps, 'step')} of {1000 * seconds:.0f} ms"
        said = f"about {duration(steps * seconds)} to go: {each}"
        if steps * seconds <= 3600 or self._about["scale"] == "small":
            return f"{said}, without validation"
        try:
            read_recipe(self._about["recipe"], "small")
        except ValueError:
            return f"{said}, without validation"
        return f"{said}, without validation; --scale small ends within minutes"


class ProgressLines(Callback):
    """Prints a line at the end of every epoch, and one a minute without a terminal.

    Args:
        clock: counts the time of the training steps.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._printed = time.monotonic()
        self._validated: int | None = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Print the step and the loss once a minute without a terminal."""
        if sys.stderr.isatty() or time.monotonic() - self._printed < 60:
            return
        step = trainer.fit_loop.batch_idx + 1
        self._print(trainer, f"step {step}/{trainer.num_training_batches}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the step of the validation scores."""
        self._validated = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's results, with the validation scores if these are of this step."""
        metrics = trainer.callback_metrics if self._validated == trainer.global_step else {}
        said = [
            metric.format("validation", value)
            for metric in map(Metric, dict.fromkeys(("loss", score_of(pl_module).name)))
            if (value := metric.validated(metrics)) is not None
        ]
        self._print(trainer, counted(trainer.global_step, "step"), *said)

    def _print(self, trainer: Trainer, where: str, *scores: str) -> None:
        self._printed = time.monotonic()
        loss = trainer.callback_metrics.get("train/loss")
        trained = [] if loss is None else [Metric("loss").format("training", float(loss))]
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else "?"
        milliseconds = 1000 * self._clock.seconds / max(self._clock.steps, 1)
        at = f"epoch {trainer.current_epoch + 1}/{epochs}"
        tqdm.write(", ".join([at, where, *trained, *scores, f"{milliseconds:.1f} ms a step"]))
        sys.stdout.flush()


_SAMPLE = re.compile(r"epoch \d+, (\d+) steps?: ")
#: file of a run folder that holds the samples of all epochs
SAMPLES = "samples.txt"
# most bytes of that file
_LIMIT = 1 << 27


class Samples(Callback):
    """Prints what a model writes after each epoch, and appends it to a file.

    The draws have a generator of their own, so that training goes on as without samples.

    Args:
        path: the file, with a line for each sample.
        count: number of samples of an epoch.
        quiet: whether to print nothing.
        last_kept: drop samples of later steps than this one, which a resumed training writes again.
    """

    def __init__(self, path: Path, count: int, quiet: bool, last_kept: int) -> None:
        self._path, self._count, self._quiet = path, count, quiet
        self._last_kept = last_kept

    def state_dict(self) -> dict[str, Any]:
        """Return the number of samples: ``run.json`` has the one that the training began with."""
        return {"count": self._count}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the samples of later steps, and a line that a kill has cut off."""
        if not processes.is_first() or not file_exists(self._path):
            return
        text = as_text(unpack(self._path, "", _LIMIT), self._path)
        lines = text.split("\n")[:-1]
        found = [(_SAMPLE.match(line), line) for line in lines]
        kept = [line for at, line in found if at is None or int(at[1]) <= self._last_kept]
        write_whole(self._path, "".join(f"{line}\n" for line in kept).encode())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write samples, unless the epoch is cut short: a resumed training ends it."""
        if not self._count or not trainer.is_last_batch or not processes.is_first():
            return
        model: Any = pl_module
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        calls = Counter(dispatch.calls)
        with temporarily(model.modules(), training=False):
            written = model.write_samples(data, self._count)
        # the kernels that checkpoints name are those of the training
        dispatch.calls.clear()
        dispatch.calls.update(calls)
        at = f"epoch {trainer.current_epoch + 1}, {counted(trainer.global_step, 'step')}"
        lines = [f"{at}: {sample}" for sample in written]
        with self._path.open("a", newline="", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        if not self._quiet:
            tqdm.write("\n".join(lines))
            sys.stdout.flush()


def check_samples(model: object) -> None:
    """Refuse samples of a model that writes no text.

    Raises:
        ValueError: if the model has no ``write_samples``.
    """
    if not hasattr(model, "write_samples"):
        writes = getattr(model, "writes", "writes nothing")
        raise ValueError(
            "samples are for models that continue a text or translate, and "
            f"{type(model).__name__} {writes}: leave samples (--samples) out"
        )
