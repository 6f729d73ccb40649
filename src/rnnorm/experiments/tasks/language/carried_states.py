"""The states that are carried from one window of a text into the next."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rnnorm.experiments.data.text.windows import Window
from rnnorm.experiments.models.recurrent_model import map_states
from rnnorm.experiments.training import processes


class CarriedStates:
    """The carried states, separate for training, validation, test and statistics."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}

    def before(self, name: str, batch: Window) -> Any:
        """Return the state before a minibatch, or None for the initial state."""
        return None if batch.fresh else map_states(self.of[name], lambda s: s.to(batch.x.device))

    def keep(self, name: str, batch: Window, state: Any) -> None:
        """Remember the state for the next minibatch."""
        if batch.kept:
            self.of[name] = map_states(state, Tensor.detach)
        else:
            self.of.pop(name, None)

    def saved(self) -> Any:
        """Return the training states of all processes, on the CPU, for a checkpoint."""
        state = self.of.get("train")
        # on the CPU, where every process can read it
        every = processes.gather(None if state is None else map_states(state, Tensor.cpu))
        return every[0] if len(every) == 1 else every

    def restore(self, saved: Any) -> None:
        """Restore the state of this process from a checkpoint."""
        state = processes.of_this_process(saved) if isinstance(saved, list) else saved
        if state is not None:
            self.of["train"] = state
