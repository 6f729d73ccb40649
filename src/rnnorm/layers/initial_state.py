"""Initial states of sequences without a given one: zeros, noise, or learned values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import State
from rnnorm.layers.call.sorted_batch import Batch, mean_frame
from rnnorm.norm.spec import Norm

if TYPE_CHECKING:
    from rnnorm.layers.sequence_layer import SequenceLayer


def default_noise(norm: Norm | None) -> float:
    """Return the default noise on h_0: batch norm of the recurrence needs a varying start."""
    specs = () if norm is None else (norm.of("recurrent"), norm.of("joint"))
    return 0.1 if any([spec and spec.takes_statistics for spec in specs]) else 0.0


def check_learned(value: object) -> None:
    """Check an argument ``learn_initial_state``.

    Raises:
        TypeError: if it is neither a bool nor a string.
        ValueError: if it is another string than ``"from_input"``.
    """
    if not isinstance(value, bool) and value != "from_input":
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"learn_initial_state must be True, False or 'from_input', got {value!r}")


def register_initial_state(
    module: nn.Module,
    sizes: Mapping[str, int],
    count: int,
    input_size: int | None,
    **factory_kwargs: Any,
) -> None:
    """Register a parameter ``{state}_0`` ``(count, size)`` of zeros for each state.

    Args:
        module: module that gets the parameters.
        sizes: width of each state.
        count: number of layers times directions.
        input_size: unless None, ``{state}_0_weight`` ``(count, size, input_size)`` is added too.
        **factory_kwargs: device and dtype.
    """
    for name, size in sizes.items():
        module.register_parameter(
            f"{name}_0", nn.Parameter(torch.zeros(count, size, **factory_kwargs))
        )
        if input_size is not None:
            weight = torch.zeros(count, size, input_size, **factory_kwargs)
            module.register_parameter(f"{name}_0_weight", nn.Parameter(weight))


def initial_state(module: SequenceLayer, rows: int, like: Tensor, batch: Batch | None) -> State:
    """Return states ``(D * num_layers, rows, ·)``, in training with noise on the first state.

    Args:
        module: layer; learned states are in the parameters of :func:`register_initial_state`.
        rows: number of rows, which are in the order in which the user gave them.
        like: tensor with the dtype and device of states that are not learned.
        batch: batch whose mean frames ``"from_input"`` reads; otherwise it may be None.
    """
    sizes, layers = module._state_sizes(), len(module._suffixes())
    if module.learn_initial_state:
        state = _learned(module, sizes, rows, batch)
    else:
        # equal states share their zeros, which nothing writes to
        zeros = {size: like.new_zeros((layers, rows, size)) for size in {*sizes.values()}}
        state = [zeros[size] for size in sizes.values()]
    if module.training and module.initial_noise:
        noise = torch.randn_like(state[0]).mul_(module.initial_noise)
        state[0] = state[0] + noise if module.learn_initial_state else noise
    return tuple(state)


def _learned(
    module: SequenceLayer, names: Iterable[str], rows: int, batch: Batch | None
) -> list[Tensor]:
    """Return the learned initial states of these names, for every row."""
    mean = None
    if module.learn_initial_state == "from_input":
        assert batch is not None
        mean = mean_frame(batch)
    state = []
    for name in names:
        learned = getattr(module, f"{name}_0").unsqueeze(1).expand(-1, rows, -1)
        if mean is not None:
            weight = getattr(module, f"{name}_0_weight")
            learned = learned + torch.einsum("bi,lhi->lbh", mean.to(weight.dtype), weight)
        state.append(learned)
    return state
