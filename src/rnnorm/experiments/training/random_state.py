"""Random numbers that go on where a checkpoint was written."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from rnnorm.experiments.training import processes


class RandomState(Callback):
    """Keeps the states of the random numbers of Python, numpy and torch in the checkpoint.

    Those of every process: each has noise of its own.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The states, in plain types and tensors: ``torch.load`` needs no pickled code."""
        every = processes.of_each(self._state())
        return every[0] if len(every) == 1 else {"processes": every}

    def _state(self) -> dict[str, Any]:
        version, internal, gauss = random.getstate()
        # numpy's global state, which is what seed_everything seeds
        numpy: Any = np.random.get_state()  # noqa: NPY002
        name, keys, position, has_gauss, cached = numpy
        return {
            "python": [version, list(internal), gauss],
            "numpy": [name, keys.tolist(), position, has_gauss, cached],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep them until training starts: what comes before may draw numbers of its own."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore them, in the last hook before the next step."""
        state, self._loaded = self._loaded, None
        if state is None:
            if trainer.global_rank:
                # weights were drawn alike, noise is not
                torch.manual_seed(torch.initial_seed() + trainer.global_rank)
            return
        if "processes" in state:
            state = processes.own(state["processes"])
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy = (name, np.array(keys, np.uint32), position, has_gauss, cached)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])
