"""``rnnorm demo``: LSTM, BN-LSTM and LN-LSTM side by side on permuted digits."""

from __future__ import annotations

import csv
import io
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from rnnorm.experiments.building import Built, as_text, quiet_lightning
from rnnorm.experiments.checkpoints import write_whole
from rnnorm.experiments.clock import Clock
from rnnorm.experiments.finite import StopIfNotFinite
from rnnorm.experiments.picture import draw
from rnnorm.experiments.recipe import read_recipe

MODELS = {"LSTM": "demo/digits-lstm", "BN-LSTM": "demo/digits-bn", "LN-LSTM": "demo/digits-ln"}


@dataclass
class Curve:
    """Validation accuracy of one training, one point after each epoch.

    Attributes:
        model: its name, ``LSTM``, ``BN-LSTM`` or ``LN-LSTM``.
        seed: its seed.
        steps: training steps until each point.
        seconds: seconds spent in them.
        accuracy: validation accuracy in per cent.
    """

    model: str
    seed: int
    steps: list[int]
    seconds: list[float]
    accuracy: list[float]


class _Record(Callback):
    """Appends to a curve after each validation and moves the bar after each step."""

    def __init__(self, curve: Curve, clock: Clock, bar: Any) -> None:
        self._curve, self._clock, self._bar = curve, clock, bar

    def on_train_batch_end(self, *_: Any) -> None:
        self._bar.update()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._curve.steps.append(trainer.global_step)
        self._curve.seconds.append(self._clock.seconds)
        self._curve.accuracy.append(100 * float(trainer.callback_metrics["val/accuracy"]))
        self._bar.set_postfix_str(f"validation accuracy {self._curve.accuracy[-1]:.1f} %")


def demo(
    out: str | Path = "runs/demo",
    *,
    picture: str | Path | None = None,
    seeds: int = 3,
    epochs: int | None = None,
    overrides: Sequence[str] = (),
) -> list[Curve]:
    """Train the three models with the same budget and seeds, print a table, draw a picture.

    Args:
        out: folder for ``demo.png`` and ``demo.csv``.
        picture: another place for the picture.
        seeds: how many seeds, from 1 on.
        epochs: epochs of each training, as in the recipes by default.
        overrides: options of LightningCLI for all of them.

    Returns:
        A curve for each model and seed.

    Raises:
        ValueError: ``seeds`` or ``epochs`` is less than 1.
        NotADirectoryError: ``out`` is a file.
    """
    for name, value in (("seeds", seeds), ("epochs", epochs)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if epochs is not None:
        overrides = [*overrides, f"--trainer.max_epochs={epochs}"]
    folder = Path(out)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is no folder")
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"Permuted digits: 1257 images read as 64 pixels in one fixed random order, {seeds} seeds "
        "of each model",
        flush=True,
    )
    curves = []
    with tqdm(disable=not sys.stderr.isatty(), unit="step", leave=False) as bar:
        for seed in range(1, seeds + 1):
            curves += [_train(model, seed, overrides, bar, seeds) for model in MODELS]
    table = results_table(curves)
    path = Path(picture) if picture is not None else folder / "demo.png"
    draw(curves, path)
    write_whole(folder / "demo.csv", _as_csv(curves).encode())
    print(f"\n{table}\n\npicture: {path}\ncurves: {folder / 'demo.csv'}")
    print("next, on real MNIST: rnnorm fit cooijmans2016/pmnist-bn --scale small")
    return curves


def _train(model: str, seed: int, overrides: Sequence[str], bar: Any, seeds: int) -> Curve:
    curve, clock = Curve(model, seed, [], [], []), Clock()
    config = as_text(read_recipe(MODELS[model]).config)
    built = Built(config, [*overrides, f"--seed_everything={seed}"])
    trainer = built.make_trainer([clock, StopIfNotFinite(), _Record(curve, clock, bar)])
    built.datamodule.setup("fit")
    if not bar.total:
        steps = len(built.datamodule.train_dataloader()) * (trainer.max_epochs or 1)
        bar.reset(total=steps * seeds * len(MODELS))
    bar.set_description(f"{model}, seed {seed} of {seeds}")
    with quiet_lightning():
        trainer.fit(built.model, datamodule=built.datamodule)
    tqdm.write(
        f"{model:<7}  seed {seed}  {curve.steps[-1]} steps in {clock.seconds:5.1f} s  "
        f"validation accuracy {curve.accuracy[-1]:.1f} %"
    )
    sys.stdout.flush()
    return curve


def results_table(curves: Sequence[Curve]) -> str:
    """Accuracy, cost of a step, and time to the plain LSTM's best, as aligned text."""
    goal = max(_means([c for c in curves if c.model == "LSTM"]))
    rows = [("", "validation accuracy, %", "ms per step", f"reaches {goal:.1f} % after")]
    for model in dict.fromkeys(c.model for c in curves):
        own = [c for c in curves if c.model == model]
        milliseconds = statistics.median(1000 * c.seconds[-1] / c.steps[-1] for c in own)
        accuracy = _spread([c.accuracy[-1] for c in own])
        rows.append((model, accuracy, f"{milliseconds:.1f}", _reaches(own, goal)))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    note = (
        f"mean and standard deviation of {len({c.seed for c in curves})} seeds at the last epoch; "
        f"{goal:.1f} % is the best of the LSTM's mean curve"
    )
    return "\n".join(line.rstrip() for line in [*lines, "", note])


def _spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _means(curves: Sequence[Curve]) -> list[float]:
    """The mean curve over the seeds."""
    return [statistics.fmean(values) for values in zip(*(c.accuracy for c in curves), strict=True)]


def _reaches(curves: Sequence[Curve], goal: float) -> str:
    """When the mean curve first reaches the goal."""
    at = next((i for i, mean in enumerate(_means(curves)) if mean >= goal), None)
    if at is None:
        return "not reached"
    return f"{statistics.fmean(c.seconds[at] for c in curves):.1f} s, {curves[0].steps[at]} steps"


def _as_csv(curves: Sequence[Curve]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("model", "seed", "step", "seconds", "validation accuracy"))
    for c in curves:
        for point in zip(c.steps, c.seconds, c.accuracy, strict=True):
            writer.writerow((c.model, c.seed, point[0], f"{point[1]:.3f}", f"{point[2]:.3f}"))
    return text.getvalue()
