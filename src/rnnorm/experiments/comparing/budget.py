"""The budget of compared trainings, in epochs or in minutes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.private_apis import callbacks_of, end_training
from rnnorm.experiments.trained.curve import Curve
from rnnorm.experiments.trained.outcome import Outcome
from rnnorm.experiments.training.clock import Clock
from rnnorm.experiments.training.resume import accumulating


@dataclass(frozen=True)
class Budget:
    """The budget of each training.

    Attributes:
        epochs: passes over the training data, or None.
        minutes: minutes in training steps, or None.

    Raises:
        ValueError: if ``epochs`` is less than 1, or ``minutes`` is not above 0 and finite.
    """

    epochs: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        check_at_least(1, epochs=self.epochs)
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be above 0 and finite, got {self.minutes}")

    @property
    def overrides(self) -> list[str]:
        """Return the options of LightningCLI that set the budget."""
        if self.epochs is None and self.minutes is None:
            return []
        return [f"--trainer.max_epochs={self.epochs or -1}", "--trainer.max_steps=-1"]

    def callbacks(self) -> list[Callback]:
        """Return the callbacks that end a training within an epoch."""
        return [] if self.minutes is None else [StopAfterSeconds(60 * self.minutes)]

    def spent(self, outcome: Outcome) -> bool:
        """Tell whether a training has used up the budget."""
        return (self.epochs is not None and outcome.epochs >= self.epochs) or (
            self.minutes is not None and outcome.seconds >= 60 * self.minutes
        )

    def ended(self, outcome: Outcome) -> bool:
        """Tell whether a training used up these minutes, so that no further step began."""
        return self.minutes is not None and math.isclose(outcome.minutes or 0.0, self.minutes)

    def cut(self, curves: Sequence[Curve], ended: Sequence[bool] = ()) -> list[Curve]:
        """Cut curves to the budget; without one, to the shortest curve that did not diverge.

        Args:
            curves: the curves.
            ended: whether each training had the budget's minutes, so that all of its steps count.
        """
        if self.epochs is None and self.minutes is None:
            ends = [c.steps[-1] if c.steps else 0 for c in curves if not c.diverged]
            last = min(ends, default=0)
            return [c.until(sum(step <= last for step in c.steps)) for c in curves]
        ended = ended or [False] * len(curves)
        return [self._within(c, e) for c, e in zip(curves, ended, strict=True)]

    def _within(self, curve: Curve, ended: bool) -> Curve:
        epochs = math.inf if self.epochs is None else self.epochs
        seconds = math.inf if self.minutes is None or ended else 60 * self.minutes
        # the step during which the minutes end is within the budget
        starts = [s - s / n for s, n in zip(curve.seconds, curve.steps, strict=True)]
        cut = curve.until(
            sum(e <= epochs and s < seconds for e, s in zip(curve.epochs, starts, strict=True))
        )
        # a divergence beyond the budget does not count
        used_up = len(cut.values) < len(curve.values) or curve.diverged > epochs
        return replace(cut, diverged=0 if used_up else curve.diverged)


class StopAfterSeconds(Callback):
    """Callback that ends a training after some seconds in training steps, with a validation.

    Args:
        seconds: seconds in training steps, those before an interruption included.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def state_dict(self) -> dict[str, Any]:
        """Return the minutes, for a checkpoint to tell why the training ended."""
        return {"minutes": self._seconds / 60}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a resumed training that has used up its time, without a step."""
        if self._spent(trainer):
            end_training(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the training if its time is used up; the clock was stopped just before."""
        if self._spent(trainer) and not accumulating(trainer):
            end_training(trainer)

    def _spent(self, trainer: Trainer) -> bool:
        (clock,) = callbacks_of(trainer, Clock)
        return clock.seconds >= self._seconds
