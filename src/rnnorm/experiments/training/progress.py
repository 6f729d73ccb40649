"""What a training says while it runs: how long it takes, a bar, a line for every epoch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from tqdm import tqdm

from rnnorm.experiments.console import duration
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.training.clock import Clock
from rnnorm.experiments.training.score import Metric, Score, score_of
from rnnorm.experiments.training.trainer import StopAfter, callbacks_of


def progress_bars() -> list[Callback]:
    """A bar for a test, on a terminal alone."""
    return [TQDMProgressBar()] if sys.stderr.isatty() else []


class StepsBar(Callback):
    """One bar over the steps of a whole training, or of several; on a terminal alone.

    Args:
        score: shown after each validation.
        bar: the bar of several trainings, which its owner closes; by default an own one.
        name: what the training is called there.
        trainings: how many there are.
    """

    def __init__(
        self, score: Score, bar: Any = None, name: str = "training", trainings: int = 1
    ) -> None:
        self._score, self._name, self._trainings = score, name, trainings
        self._bar, self._owned, self._step = bar, bar is None, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how much there is to do."""
        self._step = trainer.global_step
        if self._bar is None:
            self._bar = steps_bar()
        if self._bar.disable:
            return
        steps = _all_steps(trainer)
        if not self._bar.total and math.isfinite(steps):
            self._bar.reset(total=int(steps) * self._trainings)
        # what a resumed training has done already took no time now
        self._bar.n += self._step
        self._bar.initial += self._step
        self._bar.set_description(self._name)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Count."""
        self._bar.update(trainer.global_step - self._step)
        self._step = trainer.global_step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the score."""
        value = trainer.callback_metrics.get(f"val/{self._score.name}")
        if value is not None and self._bar is not None:
            self._bar.set_postfix_str(self._score.said("validation", float(value)))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The training is over."""
        self._close()

    def on_exception(self, *_: Any) -> None:
        """The training was stopped: what is said of it stands below the bar."""
        self._close()

    def _close(self) -> None:
        if self._owned and self._bar is not None:
            self._bar.close()


def _all_steps(trainer: Trainer) -> float:
    """Steps of the whole training, infinity if it ends otherwise."""
    limits = [callback.steps for callback in callbacks_of(trainer, StopAfter)]
    return min([trainer.estimated_stepping_batches, *limits])


def steps_bar() -> Any:
    """A bar that counts steps, on a terminal alone."""
    return tqdm(disable=not sys.stderr.isatty(), unit="step", leave=False)


class TimeAhead(Callback):
    """Says, after its first steps, how long a training will take.

    Args:
        about: its ``run.json``.
        clock: counts the time of the training steps.
    """

    def __init__(self, about: Mapping[str, Any], clock: Clock) -> None:
        self._about, self._clock = about, clock
        self._first: tuple[int, float] | None = None
        self._told = False

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Measure, and tell once."""
        if self._told:
            return
        now = trainer.global_step, self._clock.seconds
        # the first step also pays for what is set up once
        first = self._first = self._first or now
        steps, seconds = now[0] - first[0], now[1] - first[1]
        # 20 steps are measured, or as many as there are in 10 seconds
        if steps < 1 or (steps < 20 and seconds < 10):
            return
        self._told = True
        left = _all_steps(trainer) - now[0]
        if math.isfinite(left) and left > 0:
            tqdm.write(self._sentence(int(left), seconds / steps))
            sys.stdout.flush()

    def _sentence(self, steps: int, seconds: float) -> str:
        said = f"about {duration(steps * seconds)} to go: {steps} steps of {1000 * seconds:.0f} ms"
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
        """Print where it stands."""
        if sys.stderr.isatty() or time.monotonic() - self._printed < 60:
            return
        step = trainer.fit_loop.batch_idx + 1
        self._print(trainer, f"step {step}/{trainer.num_training_batches}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note at which step the validation scores are."""
        self._validated = trainer.global_step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's results, and scores if they are of this step."""
        metrics = trainer.callback_metrics if self._validated == trainer.global_step else {}
        said = [
            Metric(name).said("validation", float(metrics[f"val/{name}"]))
            for name in dict.fromkeys(("loss", score_of(pl_module).name))
            if f"val/{name}" in metrics
        ]
        self._print(trainer, f"{trainer.global_step} steps", *said)

    def _print(self, trainer: Trainer, where: str, *scores: str) -> None:
        self._printed = time.monotonic()
        loss = trainer.callback_metrics.get("train/loss")
        trained = [] if loss is None else [Metric("loss").said("training", float(loss))]
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else "?"
        milliseconds = 1000 * self._clock.seconds / max(self._clock.steps, 1)
        at = f"epoch {trainer.current_epoch + 1}/{epochs}"
        tqdm.write(", ".join([at, where, *trained, *scores, f"{milliseconds:.1f} ms a step"]))
        sys.stdout.flush()
