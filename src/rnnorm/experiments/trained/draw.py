"""Let a trained model draw: what ``rnnorm write RUN --out FILE`` does."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rnnorm.diagnostics import plot_strokes
from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.strokes.strokes import END, UP, StrokeBatches
from rnnorm.experiments.tasks.handwriting.data import StrokeData
from rnnorm.experiments.tasks.handwriting.model import Writer
from rnnorm.experiments.trained.load import load_trained
from rnnorm.experiments.training.checkpoint import data_state
from rnnorm.experiments.writing import refuse_file, write_whole

_KINDS = (".svg", ".png")
_COLUMNS = 5


def draw(
    run: str | Path,
    out: str | Path,
    checkpoint: str | Path | None = None,
    *,
    count: int = 1,
    classes: Sequence[str] = (),
    points: int = 0,
    temperature: float = 0.5,
    seed: int = 1,
    max_length: int = 400,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Draw characters into a picture, each until the model lifts the pen for the last time.

    Args:
        run: run folder of the training, or a recipe if a checkpoint is given. The model
            is one of handwriting.
        out: picture to draw, whose name ends with ``.svg`` or ``.png``.
        checkpoint: a ``.ckpt`` file to use instead of the run's best checkpoint.
        count: number of drawings; of each class, if the model has classes.
        classes: names of classes, for a model that has them; all of them by default.
        points: number of points of a validation drawing that each drawing begins with. They are of
            the same class, and grey in the picture.
        temperature: how far from the most probable; 0 for the most probable itself.
        seed: seed of the draws.
        max_length: where a drawing is cut off that has not ended, in points.
        data_dir: folder with the data set's files, needed by ``--points`` alone; by default that of
            the training.
        scale: scale that a checkpoint outside its run folder was trained at; ``"paper"`` by
            default.
        overrides: options of LightningCLI.

    Returns:
        The picture's file.

    Raises:
        ValueError: if a number is out of range, the recipe is not a handwriting recipe, a class is
            unknown or with ``points`` has no validation drawing, ``out`` has another suffix, or
            the checkpoint does not fit the model.
        FileNotFoundError: if the checkpoint is missing, or with ``points`` a file of the data.
    """
    check_at_least(1, count=count, max_length=max_length)
    check_at_least(0, points=points)
    out = Path(out)
    if out.suffix not in _KINDS:
        raise ValueError(f"out must end with {' or '.join(_KINDS)}, got {str(out)!r}")
    refuse_file(out.parent)
    trained = load_trained(run, checkpoint, data_dir=data_dir, scale=scale, overrides=overrides)
    model, data = trained.model(Writer), trained.experiment.datamodule
    assert isinstance(data, StrokeData)
    names = trained.kept("classes")
    numbers = _numbers(model, names, classes, count)
    beginnings: list[tuple[Tensor, Tensor] | None] = [None] * len(numbers)
    if points:
        trained.experiment.set_up("fit")
        data.load_state_dict(data_state(trained.state, data))
        asked = [None if model.start is None else names[number] for number in numbers]
        beginnings = list(_beginnings(data, asked, points))
    generator = torch.Generator().manual_seed(seed)
    drawings = []
    for number, beginning in zip(numbers, beginnings, strict=True):
        drawings += model.draw(
            torch.tensor([number]), temperature, max_length, generator, beginning
        )
    return _picture(drawings, points, out)


def _numbers(model: Writer, names: Sequence[str], classes: Sequence[str], count: int) -> list[int]:
    """Return the class number of each drawing, 0 for a model without classes."""
    if model.start is None:
        if classes:
            raise ValueError(f"classes must be none for a model without, got {', '.join(classes)}")
        return [0] * count
    if unknown := [name for name in classes if name not in names]:
        raise ValueError(f"classes must be of {', '.join(names)}, got {unknown[0]!r}")
    return [names.index(name) for name in classes or names for _ in range(count)]


def _beginnings(
    data: StrokeData, classes: Sequence[str | None], points: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first points of a validation drawing of each class; None stands for any class."""
    loader = data.loaders["val"]
    assert isinstance(loader, StrokeBatches)
    turns: dict[str | None, Iterator[int]] = {}
    for name in classes:
        if name not in turns:
            found = [i for i, d in enumerate(loader.drawings) if name is None or d.label == name]
            if not found:
                raise ValueError(
                    f"points need a validation drawing of class {name!r}: there is none"
                )
            turns[name] = itertools.cycle(found)
        offsets, pen = loader.points(next(turns[name]))
        # a given beginning must not end the drawing
        pen = pen[:points].clone()
        pen[pen == END] = UP
        yield offsets[:points], pen


def _picture(drawings: Sequence[Tensor], given: int, out: Path) -> Path:
    """Write the drawings as a picture file and return its path."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = -(-len(drawings) // _COLUMNS)
    figure = Figure(figsize=(1.6 * min(_COLUMNS, len(drawings)), 1.6 * rows), layout="tight")
    plot_strokes(figure.subplots(), drawings, _COLUMNS, given)
    data = io.BytesIO()
    # equal drawings give equal files
    metadata = dict.fromkeys(("Creator", "Date")) if out.suffix == ".svg" else {}
    with rc_context({"svg.hashsalt": "rnnorm"}):
        figure.savefig(data, format=out.suffix[1:], dpi=150, metadata=metadata)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, data.getvalue())
    return out
