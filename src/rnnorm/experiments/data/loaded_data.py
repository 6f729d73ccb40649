"""The base of all tasks' data: minibatches of three parts, loaded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as lightning

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.batches import Resumable
from rnnorm.experiments.recipe.values import check_choices


class LoadedData(lightning.LightningDataModule):
    """Minibatches of a training, a validation and a test part, which :meth:`load` reads.

    Args:
        data_dir: folder of the data's files.
        batch_size: rows of a training minibatch.
        eval_batch_size: rows of a minibatch in validation and test.
        seed: seed of the order of the training data, a new one each epoch.

    Attributes:
        loaders: minibatches of ``"train"``, ``"val"`` and ``"test"``, once the data are loaded.
        notes: remarks for the user, such as what was left out.

    Raises:
        ValueError: if a name is unknown, or a length or a size is less than 1.
    """

    def __init__(
        self,
        data_dir: str | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 64,
        seed: int = 1,
    ) -> None:
        super().__init__()
        # the subclass's arguments are included
        self.save_hyperparameters()
        check_choices(type(self), self.hparams)
        given = self.hparams.items()
        check_at_least(1, **{name: n for name, n in given if name.endswith(("length", "size"))})
        self.loaders: Mapping[str, Resumable[Any]] = {}
        self.notes: list[str] = []

    def load(self) -> Mapping[str, Resumable[Any]]:
        """Read the data.

        Raises:
            ValueError: if a file is not what it should be, or an argument does not fit the data.
            FileNotFoundError: if a file is missing.
        """
        raise NotImplementedError

    def rows_and_seed(self, part: str) -> tuple[int, int | None]:
        """Return the rows of a part's minibatches and their seed, which only ``"train"`` has."""
        if part == "train":
            return self.hparams["batch_size"], self.hparams["seed"]
        return self.hparams["eval_batch_size"], None

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Describe in JSON how an input of the model is made, for programs without rnnorm.

        Args:
            kept: what a checkpoint keeps of the data.
        """
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Read the data once, by :meth:`load`."""
        if not self.loaders:
            self.loaders = self.load()

    def check_processes(self, count: int) -> None:
        """Check that every training minibatch has a row for each process.

        Raises:
            ValueError: if a minibatch has fewer rows than processes.
        """
        fewest = self.loaders["train"].fewest_rows()
        if fewest is not None and fewest < count:
            raise ValueError(
                f"every training minibatch needs a row for each of {count} processes, one has "
                f"{fewest}: take another batch_size"
            )

    def train_dataloader(self) -> Resumable[Any]:
        """Return the training minibatches, in an order that depends on seed and epoch alone.

        Each of several processes gets its rows of every minibatch; in validation each gets all
        rows.
        """
        loader = self.loaders["train"]
        if self.trainer is not None:
            loader.process = self.trainer.global_rank, self.trainer.world_size
        return loader

    def val_dataloader(self) -> Resumable[Any]:
        """Return the validation minibatches."""
        return self.loaders["val"]

    def test_dataloader(self) -> Resumable[Any]:
        """Return the test minibatches."""
        return self.loaders["test"]
