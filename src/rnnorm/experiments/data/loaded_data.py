"""What the data of all tasks share: minibatches of three parts, loaded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as lightning

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.data.batches import Resumable


class LoadedData(lightning.LightningDataModule):
    """Minibatches of a training, a validation and a test part.

    A subclass says how they are read (:meth:`load`).

    Args:
        data_dir: folder of the data's files.
        batch_size: rows of a training minibatch.
        eval_batch_size: rows of a minibatch in validation and test.
        seed: seed of the order of the training data, a new one each epoch.

    Attributes:
        loaders: minibatches of ``"train"``, ``"val"`` and ``"test"``, once the data are loaded.
        notes: what a user should know of them, such as what was left out.

    Raises:
        ValueError: an argument that is a length or a size is less than 1.
    """

    def __init__(
        self,
        data_dir: str | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 64,
        seed: int = 1,
    ) -> None:
        super().__init__()
        # those of the subclass as well
        self.save_hyperparameters()
        given = self.hparams.items()
        check_at_least(1, **{name: n for name, n in given if name.endswith(("length", "size"))})
        self.loaders: Mapping[str, Resumable[Any]] = {}
        self.notes: list[str] = []

    def load(self) -> Mapping[str, Resumable[Any]]:
        """Read the data.

        Raises:
            ValueError: a file is not what it should be, or an argument does not fit the data.
            FileNotFoundError: a file is missing.
        """
        raise NotImplementedError

    def rows_and_seed(self, part: str) -> tuple[int, int | None]:
        """Rows of a part's minibatches and the seed of their order, None but for ``"train"``."""
        if part == "train":
            return self.hparams["batch_size"], self.hparams["seed"]
        return self.hparams["eval_batch_size"], None

    def preprocessing(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """What makes an input of the model, for a program that has no such class; as JSON.

        Args:
            kept: what a checkpoint keeps of the data.
        """
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Read the data, once; raises what :meth:`load` does."""
        if not self.loaders:
            self.loaders = self.load()

    def check_processes(self, count: int) -> None:
        """See whether every training minibatch has a row for each process.

        Raises:
            ValueError: one has not.
        """
        fewest = self.loaders["train"].fewest_rows()
        if fewest is not None and fewest < count:
            raise ValueError(
                f"every training minibatch needs a row for each of {count} processes, one has "
                f"{fewest}: take another batch_size"
            )

    def train_dataloader(self) -> Resumable[Any]:
        """Training minibatches, in an order that is a function of the seed and the epoch.

        Each of several processes gets its rows of every minibatch. In validation each sees all.
        """
        loader = self.loaders["train"]
        if self.trainer is not None:
            loader.process = self.trainer.global_rank, self.trainer.world_size
        return loader

    def val_dataloader(self) -> Resumable[Any]:
        """Validation minibatches."""
        return self.loaders["val"]

    def test_dataloader(self) -> Resumable[Any]:
        """Test minibatches."""
        return self.loaders["test"]
