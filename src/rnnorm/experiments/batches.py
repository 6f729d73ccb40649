"""Minibatches of sequences held in memory, in an order that can be taken up again anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


class Batches:
    """Iterates over minibatches ``(x, y)``, ``x`` of shape ``(T, B, I)`` and ``y`` ``(B,)``.

    The order is a function of the seed and the epoch alone. A loop that was stopped after some
    batches goes on with the next one after :meth:`load_state_dict`.

    Args:
        x: sequences ``(N, T, I)``.
        y: classes ``(N,)``.
        batch_size: rows of a minibatch; the last one of an epoch may have fewer. A single row
            that is left over joins the minibatch before it.
        seed: seed of the order, or None for the order in which the data stands.

    Raises:
        ValueError: ``x`` is empty or has another length than ``y``, or ``batch_size < 1``.
    """

    # lightning asks for it wherever there is a sampler
    batch_sampler: None = None

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, seed: int | None = None) -> None:
        if len(x) != len(y) or not len(x):
            raise ValueError(f"x and y must have the same length > 0, got {len(x)} and {len(y)}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.x, self.y = x, y
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self._done = 0
        self._loaded: tuple[int, int] | None = None

    @property
    def sampler(self) -> Batches:
        """Itself: Lightning tells the sampler of a loader which epoch begins."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop runs through."""
        self.epoch = epoch

    def order(self) -> Tensor:
        """Indices ``(N,)`` of this epoch's examples, in its order."""
        if self.seed is None:
            return torch.arange(len(self.y))
        # RandomState's numbers are frozen for all versions of numpy
        random = np.random.RandomState(
            np.random.MT19937(np.random.SeedSequence((self.seed, self.epoch)))
        )
        return torch.from_numpy(random.permutation(len(self.y)))

    def __len__(self) -> int:
        """Number of minibatches of an epoch."""
        whole, left = divmod(len(self.y), self.batch_size)
        # one row alone has no variance that batch normalisation could divide by
        return whole + (left > 1 or not whole)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Start an epoch, or go on with the one whose state was loaded."""
        loaded, self._loaded = self._loaded, None
        return self._from(loaded)

    def _from(self, loaded: tuple[int, int] | None) -> Iterator[tuple[Tensor, Tensor]]:
        # runs at the first next(), since Lightning calls iter() before set_epoch()
        epoch, self._done = loaded or (self.epoch, 0)
        if epoch != self.epoch:
            self._done = 0
        order, size = self.order(), self.batch_size
        for batch in range(self._done, len(self)):
            self._done += 1
            rows = order[batch * size : (batch + 1) * size if self._done < len(self) else None]
            yield self.x[rows].transpose(0, 1).contiguous(), self.y[rows]

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its minibatches were given out."""
        return {"epoch": self.epoch, "batch": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next loop go on from a state."""
        self.epoch = state["epoch"]
        self._loaded = (state["epoch"], state["batch"])
