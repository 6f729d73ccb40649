"""Classification of time series of any length: one class for each series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.data.series import Layout, SeriesBatches, load_series
from rnnorm.experiments.models.classifiers import SequenceClassifier


class TimeSeriesData(LoadedData):
    """Time series in minibatches ``SeriesBatch``.

    Args:
        name: name of the data set, which its files begin with.
        layout: layout of the files, ``"ts"`` or ``"uci"``
            (:func:`rnnorm.experiments.data.series.load_series`).
        features: values of a time step, for ``"uci"``.
        val: share of the training series for validation.
        **shared: arguments of :class:`rnnorm.experiments.data.loaded_data.LoadedData`.

    Attributes:
        num_features: values of a time step, once the data are loaded.
        classes: names of the classes, once the data are loaded.

    Raises:
        ValueError: if a size is less than 1.
    """

    def __init__(
        self,
        name: str = "JapaneseVowels",
        layout: Layout = "ts",
        features: int = 1,
        val: float = 0.2,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.num_features = 0
        self.classes: tuple[str, ...] = ()
        self._scale: dict[str, list[float]] = {}

    def load(self) -> dict[str, SeriesBatches]:
        """Read, split and scale the series.

        Raises:
            ValueError: if a file is broken, or an argument does not fit it.
            FileNotFoundError: if a file is missing.
        """
        given = self.hparams
        names = ("name", "data_dir", "layout", "features", "val")
        splits = load_series(*(given[name] for name in names))
        self.classes, self.num_features = splits.classes, splits.train.x[0].size(1)
        self._scale = {"subtract": splits.mean.tolist(), "divide_by": splits.std.tolist()}
        loaders = {
            part: SeriesBatches(getattr(splits, part), *self.rows_and_seed(part))
            for part in ("train", "val", "test")
        }
        self.notes = []
        for part, loader in loaders.items():
            lengths = [len(x) for x in loader.series.x]
            between = f"{min(lengths)} to {max(lengths)} steps"
            self.notes.append(f"{part}: {len(lengths)} series of {between}")
        return loaders

    def state_dict(self) -> dict[str, Any]:
        """Return scale and classes of the series, which a checkpoint keeps."""
        return {**self._scale, "classes": list(self.classes)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse a checkpoint whose series had another scale or other classes.

        Raises:
            ValueError: if scale or classes differ.
        """
        if "classes" not in state_dict:
            return
        if state_dict["classes"] != list(self.classes):
            raise ValueError(
                f"the classes are not those of the checkpoint, {state_dict['classes']}: the data "
                f"have {list(self.classes)}"
            )
        for name, value in self._scale.items():
            apart = np.abs(np.subtract(state_dict[name], value))
            # the tolerance allows for another processor's order of summation
            if (apart > 1e-4 * np.array(self._scale["divide_by"])).any():
                raise ValueError(
                    "the training series are not those of the checkpoint, which are scaled with "
                    f"{name}={state_dict[name]}: the data have {value}"
                )

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Describe mean and standard deviation of each feature, and the classes.

        The data are read if an older checkpoint does not keep them.

        Raises:
            ValueError, FileNotFoundError: if :meth:`load` fails.
        """
        if kept:
            return dict(kept)
        self.setup()
        return self.state_dict()


class TimeSeriesClassifier(SequenceClassifier):
    """A classifier of time series."""

    def check_data(self, data: TimeSeriesData) -> None:
        """Check that features and classes fit the model.

        Raises:
            ValueError: if the data need another ``input_size`` or ``num_classes``.
        """
        of = f"of {data.hparams['name']}"
        self.expect_size("input_size", data.num_features, f"the features {of}")
        self.expect_size("num_classes", len(data.classes), f"the classes {of}")
