"""Resumable iterators over minibatches, and fixed splits of examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Batch = TypeVar("Batch")


class Resumable(Generic[Batch]):
    """An iterator over minibatches whose order is a function of the seed and the epoch alone.

    A loop that was stopped after some minibatches continues with the next one after
    :meth:`load_state_dict`. A subclass defines the number of minibatches (``__len__``), the random
    choices of an epoch (:meth:`draw`) and a minibatch (:meth:`batch`).

    Args:
        seed: seed of the order, or None for the order in which the data stands.

    Attributes:
        process: number of this process, and the number of processes that share every minibatch.
    """

    # lightning reads this attribute of every loader that has a sampler
    batch_sampler: None = None

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.epoch = 0
        self.process = 0, 1
        self._done = 0
        self._loaded: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Return the number of minibatches of an epoch."""
        raise NotImplementedError

    def fewest_rows(self) -> int | None:
        """Return the rows of an epoch's smallest minibatch, or None if they are not known."""
        return None

    def draw(self) -> Any:
        """Draw the random choices of this epoch, before its first minibatch."""
        raise NotImplementedError

    def batch(self, number: int, drawn: Any) -> Batch:
        """Return a minibatch.

        Args:
            number: its place in the epoch, from 0.
            drawn: what :meth:`draw` returned.
        """
        raise NotImplementedError

    def random(self) -> np.random.RandomState:
        """Return a random generator of this seed and epoch, alike in all versions of numpy."""
        return np.random.RandomState(
            np.random.MT19937(np.random.SeedSequence((self.seed or 0, self.epoch)))
        )

    @property
    def sampler(self) -> Resumable[Batch]:
        """Return the iterator itself, since Lightning calls ``set_epoch`` of a loader's sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next loop runs through."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        """Start an epoch, or resume the one whose state was loaded."""
        loaded, self._loaded = self._loaded, None
        return self._from(loaded)

    def _from(self, loaded: tuple[int, int] | None) -> Iterator[Batch]:
        # runs at the first next(), since Lightning calls iter() before set_epoch()
        epoch, self._done = loaded or (self.epoch, 0)
        if epoch != self.epoch:
            self._done = 0
        drawn = self.draw()
        for number in range(self._done, len(self)):
            self._done += 1
            yield rows_of(self.batch(number, drawn), *self.process)

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and how many of its minibatches were yielded."""
        return {"epoch": self.epoch, "batch": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next loop resume from a state."""
        self.epoch = state["epoch"]
        self._loaded = (state["epoch"], state["batch"])


def rows_of(batch: Batch, process: int, processes: int) -> Batch:
    """Return the rows of a minibatch that one process gets.

    Args:
        batch: a tuple of tensors ``(B,)`` or ``(·, B, …)``, lists of length B, and other values,
            which are kept.
        process: number of the process.
        processes: the number of processes.

    Raises:
        ValueError: if there are fewer rows than processes.
    """
    if processes == 1:
        return batch
    parts: Any = batch
    selected = []
    for part in parts:
        if isinstance(part, Tensor):
            rows = 0 if part.dim() == 1 else 1
            if part.size(rows) < processes:
                raise ValueError(
                    f"a minibatch of {part.size(rows)} rows is too small for {processes} processes"
                )
            part = part.movedim(rows, 0)[process::processes].movedim(0, rows).contiguous()
        elif isinstance(part, list):
            part = part[process::processes]
        selected.append(part)
    # a named tuple has its own constructor
    make: Any = getattr(type(batch), "_make", tuple)
    return make(selected)  # type: ignore[no-any-return]


def fewest_rows(rows: int, batch_size: int, count: int) -> int:
    """Return the rows of the smallest of ``count`` minibatches; only the last may differ."""
    last = rows - (count - 1) * batch_size
    return last if count == 1 else min(batch_size, last)


class Minibatches(Resumable[Batch]):
    """Minibatches of a fixed number of rows; every row is in one of them.

    Args:
        rows: the number of rows of the data.
        batch_size: rows of a minibatch; the last one of an epoch may have fewer. A single row that
            is left over joins the minibatch before it.
        seed: seed of the order, or None for the order in which the data stands.
    """

    def __init__(self, rows: int, batch_size: int, seed: int | None = None) -> None:
        super().__init__(seed)
        self.rows, self.batch_size = rows, batch_size

    def __len__(self) -> int:
        """Return the number of minibatches of an epoch."""
        # one row alone has no variance that batch normalisation could divide by
        whole, left = divmod(self.rows, self.batch_size)
        return whole + (left > 1 or not whole)

    def fewest_rows(self) -> int:
        """Return the rows of an epoch's smallest minibatch."""
        return fewest_rows(self.rows, self.batch_size, len(self))

    def draw(self) -> list[NDArray[np.int64]]:
        """Draw the rows of each minibatch of this epoch."""
        order = np.arange(self.rows) if self.seed is None else self.random().permutation(self.rows)
        return self.cut(order)

    def cut(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Cut rows in this order into minibatches."""
        return np.split(order, np.arange(1, len(self)) * self.batch_size)


class WholeMinibatches(Minibatches[Batch]):
    """Minibatches that all have the same number of rows in training, for batch statistics.

    Rows that do not fill a last minibatch are left out, different ones in each epoch. Without a
    seed no row is left out, and the last minibatch may have fewer rows.
    """

    def __len__(self) -> int:
        """Return the number of minibatches of an epoch."""
        if self.seed is None:
            return -(-self.rows // self.batch_size)
        return max(1, self.rows // self.batch_size)

    def fewest_rows(self) -> int:
        """Return the rows of an epoch's smallest minibatch."""
        whole = min(self.rows, self.batch_size)
        return super().fewest_rows() if self.seed is None else whole

    def cut(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Cut rows in this order into whole minibatches, and leave the last rows out."""
        return super().cut(order[: len(self) * self.batch_size])


class Batches(Minibatches[tuple[Tensor, Tensor]]):
    """Minibatches ``(x, y)`` of sequences ``(T, B, I)`` and classes ``(B,)``.

    Args:
        x: sequences ``(N, T, I)``.
        y: classes ``(N,)``.
        batch_size: rows of a minibatch; the last one of an epoch may have fewer. A single row
            that is left over joins the minibatch before it.
        seed: seed of the order, or None for the order in which the data stands.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, seed: int | None = None) -> None:
        super().__init__(len(y), batch_size, seed)
        self.x, self.y = x, y

    def batch(self, number: int, drawn: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        """Return a minibatch of the drawn order."""
        rows = drawn[number].tolist()
        return self.x[rows].transpose(0, 1).contiguous(), self.y[rows]


# largest relative change of a length before sequences are sorted
_LOOSE = 0.1


class SimilarLengths(Minibatches[Batch]):
    """Minibatches of sequences of similar length; every sequence is in one of them.

    With a seed, lengths are compared after each was changed by up to a tenth at random, and the
    minibatches come in random order.

    Args:
        lengths: length of each sequence.
        batch_size: rows of a minibatch. One row that is left over joins the minibatch before it:
            a single row has no batch statistics.
        seed: seed of the order, or None for the order of the lengths.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int | None = None) -> None:
        super().__init__(len(lengths), batch_size, seed)
        self.lengths = np.array(lengths, np.int64)

    def draw(self) -> list[NDArray[np.int64]]:
        """Draw the sequences of each minibatch of this epoch."""
        if self.seed is None:
            return self.cut(np.argsort(self.lengths, kind="stable"))
        random = self.random()
        lengths = self.lengths * random.uniform(1 - _LOOSE, 1 + _LOOSE, len(self.lengths))
        batches = self.cut(np.argsort(lengths, kind="stable"))
        return [batches[i] for i in random.permutation(len(batches))]


def frame_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return a mask ``(steps, B)`` that is True at the steps of each row and False in the padding.

    Args:
        lengths: steps of each row ``(B,)``.
        steps: the number of steps with the padding.
    """
    return torch.arange(steps, device=lengths.device).unsqueeze(1) < lengths


Item = TypeVar("Item")


def subsample(items: Sequence[Item], size: int | None) -> list[Item]:
    """Keep ``size`` examples, a fixed random choice, in their order.

    The first ones of a file may be all of one class or speaker.

    Args:
        items: the examples.
        size: how many examples to keep; None, or their number, for all.
    """
    if size is None:
        return list(items)
    chosen = np.random.RandomState(0).permutation(len(items))[:size]
    return [items[i] for i in sorted(chosen)]


def fixed_tenth(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Shuffle examples in a fixed order and hold out a tenth of them, at least one.

    Returns:
        The examples that are left, and the tenth.
    """
    mixed = _mixed(items)
    tenth = max(1, len(items) // 10)
    return mixed[tenth:], mixed[:tenth]


def two_held_out(
    items: Sequence[Item], share: int = 10
) -> tuple[list[Item], list[Item], list[Item]]:
    """Shuffle examples in a fixed order and hold out two parts, each ``1 / share`` of them.

    Each of the two has at least one example.

    Returns:
        The examples that are left, those for validation, and those for test.
    """
    mixed = _mixed(items)
    count = max(1, len(items) // share)
    return mixed[2 * count :], mixed[:count], mixed[count : 2 * count]


def _mixed(items: Sequence[Item]) -> list[Item]:
    """Shuffle items in a fixed order."""
    return [items[i] for i in np.random.RandomState(0).permutation(len(items))]
