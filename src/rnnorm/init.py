"""Initialisations of recurrent layers, and recipes of papers.

Each function takes a recurrent layer or cell, changes its weights in place and returns it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from rnnorm.cells.lstm import LSTM

# projections (weight_hr) and connections from above (weight_ah) are not in every layer
_MATRICES = ("weight_ih", "weight_hh", "weight_hr", "weight_ah")

Layer = TypeVar("Layer", bound="nn.RNNBase | nn.RNNCellBase")


def _named(layer: nn.Module, prefix: str) -> Iterator[Tensor]:
    # not the parts that weight_norm and pruning keep in a parameter's place
    plain = re.compile(prefix + r"(_[ih]h)?(_l\d+)?(_reverse)?")
    return (p for n, p in layer.named_parameters(recurse=False) if plain.fullmatch(n))


def _plain(layer: nn.RNNBase | nn.RNNCellBase, prefix: str) -> list[Tensor]:
    if not isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        raise TypeError(
            f"layer must be a recurrent layer or cell, got a {type(layer).__name__}: give each "
            "layer of a model by itself"
        )
    found = list(_named(layer, prefix))
    needed = ("weight_ih", "weight_hh")
    of_cell = [*needed, "bias_ih", "bias_hh"] if layer.bias else needed
    names = layer._flat_weights_names if isinstance(layer, nn.RNNBase) else of_cell
    # a weight that is not a plain parameter would be skipped silently
    other = [name for name in names if name.startswith(prefix) and name not in layer._parameters]
    if other or (not found and prefix in needed):
        raise ValueError(f"layer must have plain parameters {prefix}*, got {layer}")
    return found


def _each_gate(
    layer: nn.RNNBase | nn.RNNCellBase, prefix: str, fill: Callable[[Tensor], object]
) -> None:
    for weight in _plain(layer, prefix):
        for block in torch.split(weight, layer.hidden_size):
            fill(block)


@torch.no_grad()
def orthogonal_(layer: Layer) -> Layer:
    """Draw every gate's block of every weight matrix orthogonal (Saxe et al. 2014).

    Args:
        layer: its ``weight_*`` parameters are changed.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight is pruned or parametrized.
    """
    for prefix in _MATRICES:
        _each_gate(layer, prefix, nn.init.orthogonal_)
    return layer


@torch.no_grad()
def joint_orthogonal_(layer: Layer) -> Layer:
    """Draw every weight matrix orthogonal as a whole, all gates jointly.

    The released code of Cooijmans et al. 2016 does this for text. The entries of an LSTM are half
    as large as with :func:`orthogonal_`, which draws each gate separately.

    Args:
        layer: its ``weight_*`` parameters are changed.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight is pruned or parametrized.
    """
    for prefix in _MATRICES:
        for weight in _plain(layer, prefix):
            nn.init.orthogonal_(weight)
    return layer


@torch.no_grad()
def identity_(layer: Layer) -> Layer:
    """Set every gate's block of the recurrent matrices to the identity (Le et al. 2015).

    Args:
        layer: its ``weight_hh_*`` parameters are changed.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight is pruned or parametrized.
    """
    _each_gate(layer, "weight_hh", nn.init.eye_)
    return layer


@torch.no_grad()
def forget_bias_(layer: Layer, value: float = 1.0) -> Layer:
    """Set the forget gate's bias of an LSTM, ``b_ih + b_hh``, to ``value`` (Gers et al. 2000).

    Args:
        layer: an LSTM with biases.
        value: the sum of the two biases.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if ``layer`` has no forget gate or no bias, or a bias is pruned or parametrized.
    """
    biases = _plain(layer, "bias_ih")
    size = layer.hidden_size
    if not biases or not _has_forget_gate(layer):
        raise ValueError(f"layer must be an LSTM with bias=True, got {layer}")
    for prefix, share in (("bias_ih", value), ("bias_hh", 0.0)):
        for bias in _plain(layer, prefix):
            bias[size : 2 * size] = share
    return layer


def _has_forget_gate(layer: nn.Module) -> bool:
    lstms = (nn.LSTM, nn.LSTMCell)
    return isinstance(layer, lstms) or isinstance(getattr(layer, "cell", None), LSTM)


def _candidate(weight: Tensor, size: int) -> int:
    """Return the candidate's first row; the gate orders are i f g o, r z n, or one block."""
    return 2 * size if weight.size(0) > size else 0


def _forget_gate_open(layer: Layer) -> Layer:
    """Set all biases to zero, but the bias of an LSTM's forget gate to 1."""
    biases = _plain(layer, "bias")
    for bias in biases:
        nn.init.zeros_(bias)
    return forget_bias_(layer) if biases and _has_forget_gate(layer) else layer


@torch.no_grad()
def cooijmans2016_(layer: Layer) -> Layer:
    """Initialise as the released code of Cooijmans et al. 2016 does for pixels.

    Recurrent weights: the identity for the candidate, one orthogonal matrix for all gates. Input
    weights: one orthogonal matrix for candidate and gates. Biases: zero, but 1 for the forget gate
    of an LSTM. With ``learn_initial_state="from_input"`` every unit of h_0 begins as the mean of
    the sequence's values.

    Args:
        layer: its weights and biases are changed; peepholes, γ and β are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight or bias is pruned or parametrized.
    """
    joint_orthogonal_(layer)
    size = layer.hidden_size
    for weight in _named(layer, "weight_hh"):
        if weight.size(1) == size:
            start = _candidate(weight, size)
            gates = nn.init.orthogonal_(weight.new_empty(weight.size(0) - size, size))
            identity = torch.eye(size, device=weight.device, dtype=weight.dtype)
            weight.copy_(torch.cat((gates[:start], identity, gates[start:])))
    for weight in _named(layer, "h_0_weight"):
        nn.init.constant_(weight, 1 / layer.input_size)
    return _forget_gate_open(layer)


@torch.no_grad()
def cooijmans2016_by_gate_(layer: Layer) -> Layer:
    """Initialise as :func:`cooijmans2016_`, but with an orthogonal matrix for each gate.

    An LSTM's recurrent gates are √3 times and its input weights twice as large as in the released
    code. Batch normalisation hides the difference; for a plain LSTM it matters.

    Args:
        layer: its weights and biases are changed; peepholes, γ and β are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight or bias is pruned or parametrized.
    """
    orthogonal_(layer)
    size = layer.hidden_size
    for weight in _named(layer, "weight_hh"):
        if weight.size(1) == size:
            start = _candidate(weight, size)
            nn.init.eye_(weight[start : start + size])
    return _forget_gate_open(layer)


@torch.no_grad()
def laurent2015_(layer: Layer) -> Layer:
    """Initialise as Laurent et al. 2015 do for speech: Glorot uniform per gate, zero biases.

    Args:
        layer: its weights and biases are changed; peepholes, γ and β are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight or bias is pruned or parametrized.
    """
    for prefix in _MATRICES:
        _each_gate(layer, prefix, nn.init.xavier_uniform_)
    for bias in _plain(layer, "bias"):
        nn.init.zeros_(bias)
    return layer
