"""Data of drawings, point after point."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from rnnorm.experiments.data.batches import subsample
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.strokes.corpora import load_iam, load_kanjivg, load_pendigits
from rnnorm.experiments.data.strokes.strokes import StrokeBatches

_LOADERS = {"kanjivg": load_kanjivg, "iam": load_iam, "pendigits": load_pendigits}


class StrokeData(LoadedData):
    """Drawings in minibatches ``StrokeBatch``.

    Args:
        dataset: ``"kanjivg"`` (``load_kanjivg``), ``"iam"`` (``load_iam``) or ``"pendigits"``
            (``load_pendigits``), which has classes.
        max_length: most points of a training drawing; longer ones are left out. None for no limit.
        train_size: keep only this many training drawings, a fixed random choice.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

    Attributes:
        classes: names of the classes in order, once the data are loaded; may be empty.
        scale: standard deviation of all training offsets, by which offsets are divided.
    """

    def __init__(
        self,
        dataset: Literal["kanjivg", "iam", "pendigits"] = "kanjivg",
        max_length: int | None = None,
        train_size: int | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.classes: tuple[str, ...] = ()
        self.scale = 1.0

    def load(self) -> dict[str, StrokeBatches]:
        """Read the drawings.

        Raises:
            ValueError: if a file is broken, a class is not in the training part, or no training
                drawing is left.
            FileNotFoundError: if a file is missing.
        """
        given = self.hparams
        parts = _LOADERS[given["dataset"]](given["data_dir"])
        most = given["max_length"] or max(len(each.pen) for each in parts.train)
        train = [each for each in parts.train if len(each.pen) <= most]
        if not train:
            raise ValueError(f"max_length must leave a training drawing, got {most}")
        self.notes = []
        if left_out := len(parts.train) - len(train):
            self.notes.append(f"train: {left_out} drawings of more than {most} points left out")
        train = subsample(train, given["train_size"])
        self.classes = tuple(sorted({each.label for each in train if each.label}))
        for others in (parts.val, parts.test):
            if unknown := {each.label for each in others} - {*self.classes, ""}:
                raise ValueError(f"no training drawing has the class {min(unknown)!r}")
        self.scale = float(np.concatenate([each.offsets for each in train]).std())
        if not self.scale > 0:
            raise ValueError("the training drawings must have points apart from each other")
        loaders = {
            part: StrokeBatches(drawings, self.classes, self.scale, *self.rows_and_seed(part))
            for part, drawings in (("train", train), ("val", parts.val), ("test", parts.test))
        }
        for part, loader in loaders.items():
            count, points = len(loader.drawings), int(loader.lengths.sum())
            self.notes.append(f"{part}: {count} drawings, {points} points")
        return loaders

    def state_dict(self) -> dict[str, Any]:
        """Return the classes and the scale, which a checkpoint keeps."""
        return {"classes": list(self.classes), "scale": self.scale}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint that was trained with other drawings.

        Raises:
            ValueError: if classes or scale differ.
        """
        if "scale" not in state_dict:
            return
        # the tolerance allows for another processor's order of summation
        same = math.isclose(state_dict["scale"], self.scale, rel_tol=1e-5)
        if not same or state_dict["classes"] != list(self.classes):
            raise ValueError(
                f"the drawings are not those of the checkpoint, {state_dict}: they have "
                f"{self.state_dict()}"
            )
