"""Log one line for every number in one CSV file, and the training scores of each epoch."""

from __future__ import annotations

import csv
import io
import math
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor

from rnnorm.experiments.data.text_file import as_text
from rnnorm.experiments.files import unpack
from rnnorm.experiments.training import processes
from rnnorm.experiments.training.clock import Clock
from rnnorm.experiments.writing import write_whole

COLUMNS = ("step", "epoch", "seconds", "name", "value")
#: what stands before the name of a training score of a whole epoch
EPOCH = "train_epoch/"
# name of the number that a diverged training logs
DIVERGED = "diverged"
# most bytes, two million lines: each takes ten times its size in memory
_LIMIT = 1 << 27
# most steps or epochs
_MOST = 2**63 - 1


class Point(NamedTuple):
    """A logged number and its time.

    Attributes:
        step: the training step before the number, counted from 0.
        epoch: the epoch of the number, counted from 0.
        seconds: time spent in training steps until then.
        value: the number.
    """

    step: int
    epoch: int
    seconds: float
    value: float


@contextmanager
def quiet_writer_thread() -> Iterator[None]:
    """Silence the traceback of TensorBoard's thread, whose error the training raises too."""
    before = threading.excepthook

    def failed(args: threading.ExceptHookArgs) -> None:
        of_writer = type(args.thread).__module__.startswith("tensorboard.")
        if not (of_writer and issubclass(args.exc_type, OSError)):
            before(args)

    threading.excepthook = failed
    try:
        yield
    finally:
        threading.excepthook = before


class MetricsFile(Logger):
    """Appends ``step, epoch, seconds, name, value`` to a CSV file.

    ``seconds`` is the time spent in training steps (see ``Clock``).
    Lines reach the disk at the end of each call, so that a kill loses none.

    Args:
        path: the file.
        clock: where the seconds come from.
        first_dropped: drop lines from this step on first, which a resumed training writes again.
            Of the step before, it writes only the names that have no line: ``best.ckpt`` is
            written before the training scores of its epoch are logged.
    """

    def __init__(self, path: Path, clock: Clock, first_dropped: int) -> None:
        super().__init__()
        self.path = path
        self._clock = clock
        lines = [row for row in _rows(path) if int(row[0]) < first_dropped]
        self._epoch = int(lines[-1][1]) if lines else 0
        last = first_dropped - 1
        self._kept = {(last, name) for step, _, _, name, _ in lines if int(step) == last}
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *lines])
        write_whole(path, text.getvalue().encode())

    @property
    def name(self) -> str:
        """Return the name of the logger."""
        return "metrics"

    @property
    def version(self) -> int:
        """Return 0, as there is one version."""
        return 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a line for each number."""
        values = dict(metrics)
        # callbacks that log by themselves leave the epoch out
        self._epoch = epoch = int(values.pop("epoch", self._epoch))
        seconds = f"{self._clock.seconds:.3f}"
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(
                (step, epoch, seconds, name, f"{value:.9g}")
                for name, value in values.items()
                if (step, name) not in self._kept
            )

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Ignore hyper-parameters, which the run folder's ``config.yaml`` holds."""


class TrainingScores(Callback):
    """Logs the training scores of each epoch, as the means over the terms of its minibatches.

    They are of the passes that training makes anyway: each minibatch with the weights, the dropout,
    the noise and the batch statistics of its step. A model's ``logged`` holds those of a step, and
    its ``epoch_scores`` turns the means into scores; a model without them has none.
    """

    def __init__(self) -> None:
        # tensors that are still on their device: to read one would wait for the step
        self._pending: list[tuple[str, Tensor, int]] = []
        self._sums: dict[str, tuple[float, int]] = {}
        # whether the sums are of all minibatches of the epoch so far
        self._whole = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note that an epoch begins: one that is resumed from an older checkpoint has no sums."""
        if batch_idx == 0:
            self._whole = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Take over what the step has logged."""
        logged: Any = getattr(pl_module, "logged", {})
        self._pending += [(name, *each) for name, each in logged.items() if each[1]]
        logged.clear()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the scores of the epoch's minibatches."""
        sums = self._totals()
        if sums and self._whole:
            means = {name: total / terms for name, (total, terms) in sums.items()}
            model: Any = pl_module
            for name, value in model.epoch_scores(means).items():
                model.log(f"{EPOCH}{name}", value)
            # all processes meet here: the first one alone reads the scores to print them
            _ = trainer.callback_metrics
        self._sums, self._whole = {}, False

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the epoch's minibatches so far, over all processes."""
        sums = {name: list(each) for name, each in self._totals().items()}
        return {"sums": sums, "whole": self._whole}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the sums; the first of several processes has them all."""
        self._whole = state_dict["whole"]
        if processes.is_first():
            self._sums = {name: tuple(each) for name, each in state_dict["sums"].items()}

    def _totals(self) -> dict[str, tuple[float, int]]:
        """Return the sum and the number of the terms of each value, over all processes."""
        for name, mean, terms in self._pending:
            total, before = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + float(mean) * terms, before + terms
        self._pending = []
        every = processes.gather(self._sums)
        found = {name: [one[name] for one in every if name in one] for one in every for name in one}
        return {
            name: (sum(total for total, _ in of), sum(terms for _, terms in of))
            for name, of in found.items()
        }


def read_metrics(path: str | Path) -> dict[str, list[Point]]:
    """Read a metrics file, and return the numbers of each name in order.

    Raises:
        ValueError: if a line is broken; the message names the file and the line.
    """
    curves: dict[str, list[Point]] = {}
    for step, epoch, seconds, name, value in _rows(Path(path)):
        point = Point(int(step), int(epoch), float(seconds), float(value))
        curves.setdefault(name, []).append(point)
    return curves


def _rows(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    text = as_text(unpack(path, "", _LIMIT), path)
    # a full disk or a kill cuts off the last line
    lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
    # editors may add spaces and empty lines
    filled = ([value.strip() for value in row] for row in lines if "".join(row).strip())
    rows: list[list[str]] = []
    try:
        if (head := next(filled, list(COLUMNS))) != list(COLUMNS):
            raise ValueError(f"it must begin with {','.join(COLUMNS)}, not {','.join(head)[:80]}")
        for row in filled:
            if len(row) != len(COLUMNS):
                raise ValueError(f"it must have {len(COLUMNS)} values, got {len(row)}")
            step, epoch, seconds, _, value = row
            for name, count in (("step", int(step)), ("epoch", int(epoch))):
                if not 0 <= count <= _MOST:
                    raise ValueError(f"{name} must be from 0 to {_MOST}, got {count!s:.40}")
            if not 0 <= float(seconds) < math.inf:
                raise ValueError(f"seconds must be a finite number of at least 0, got {seconds}")
            float(value)
            rows.append(row)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is broken in line {lines.line_num}: {error}") from None
    return rows
