"""The states that go on from one window of a text into the next."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rnnorm.experiments.data.text.windows import Window
from rnnorm.experiments.models.recurrent_model import map_states
from rnnorm.experiments.training import processes


class CarriedStates:
    """Those of training, validation, test and statistics, each kind of pass its own."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}

    def before(self, name: str, batch: Window) -> Any:
        """The state that a minibatch goes on from, None for the initial one."""
        return None if batch.fresh else map_states(self.of[name], lambda s: s.to(batch.x.device))

    def keep(self, name: str, batch: Window, state: Any) -> None:
        """Remember the state that the next minibatch goes on from."""
        if batch.kept:
            self.of[name] = map_states(state, Tensor.detach)
        else:
            self.of.pop(name, None)

    def saved(self) -> Any:
        """What a checkpoint keeps: training's, on the CPU, that of every process."""
        state = self.of.get("train")
        # where every process can read it
        every = processes.gather(None if state is None else map_states(state, Tensor.cpu))
        return every[0] if len(every) == 1 else every

    def restore(self, saved: Any) -> None:
        """Go on from what a checkpoint kept."""
        state = processes.own_part(saved) if isinstance(saved, list) else saved
        if state is not None:
            self.of["train"] = state
