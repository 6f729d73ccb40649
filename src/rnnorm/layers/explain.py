"""The kernel that a layer's next call will run on, and why no faster one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import PackedSequence

from rnnorm.layers.normalised_module import NormalisedModule
from rnnorm.layers.stateful import Stateful


class Explanation(NamedTuple):
    """The kernel of a call, as :func:`rnnorm.explain` returns it.

    Attributes:
        kernel: name of the kernel that will run, one of :func:`rnnorm.backends`.
        why_not: why each kernel that is tried before it will not, by name.
    """

    kernel: str
    why_not: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"runs on {self.kernel}"]
        return "\n".join([*lines, *[f"not on {name}: {why}" for name, why in self.why_not.items()]])


def explain(layer: Module, input: Any, **given: Any) -> Explanation:
    """Say which kernel a layer's next call will run on, and why no faster one will.

    The answer is for the layer's mode, and for the dtype, the device and the form of the input, in
    the current context (autocast, :func:`rnnorm.use_backend`). Nothing is run or changed; a cell of
    your own that would be compiled in that call counts as compiled.

    Args:
        layer: a layer of this package, or a :class:`Stateful`.
        input: input of the call.
        **given: ``lengths``, ``reset`` and ``return_states``, as the call gets them; only the call
            checks their values.

    Raises:
        TypeError: if ``layer`` is not a layer of this package, ``input`` is neither a tensor nor,
            for a layer that reads sequences, a PackedSequence, or the call does not take an
            argument.
        RuntimeError: if ``input`` has other features than the layer, or
            :func:`rnnorm.use_backend` names a kernel that does not cover the call.

    Example:
        >>> print(rnnorm.explain(rnnorm.GRU(8, 16), torch.randn(5, 3, 8)))
        runs on aten
    """
    if isinstance(layer, Stateful):
        layer = layer.layer
    if not isinstance(layer, NormalisedModule):
        raise TypeError(
            "layer must be a layer of rnnorm, such as rnnorm.LSTM or rnnorm.Recurrent, got "
            f"{type(layer).__name__}"
        )
    data = input.data if isinstance(input, PackedSequence) else input
    if not isinstance(data, Tensor):
        kind = type(input).__name__
        raise TypeError(f"input must be a tensor or a PackedSequence, got {kind}")
    if data.dim() and data.size(-1) != layer.input_size:
        raise RuntimeError(
            "input.size(-1) must be equal to input_size. "
            f"Expected {layer.input_size}, got {data.size(-1)}"
        )
    return Explanation(*layer.explained(input, **given))
