"""Initialisations of recurrent layers, and recipes of papers.

Each function takes a recurrent layer or cell, changes its weights in place and returns it. Only
matrices are drawn: an IndRNN's recurrent vector stays as it is, except in :func:`identity_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from rnnorm.cells.gru import GRU
from rnnorm.cells.ligru import LiGRU
from rnnorm.cells.lstm import LSTM
from rnnorm.norm.spec import check_number

# projections (weight_hr) and connections from above (weight_ah) are not in every layer
_MATRICES = ("weight_ih", "weight_hh", "weight_hr", "weight_ah")

Layer = TypeVar("Layer", bound="nn.RNNBase | nn.RNNCellBase")


def _named(layer: nn.Module, prefix: str) -> Iterator[Tensor]:
    """Generate the plain parameters whose names are a prefix, and perhaps a kind and a suffix."""
    # not the parts that weight_norm and pruning keep in a parameter's place
    plain = re.compile(prefix + r"(_[ih]h)?(_l\d+)?(_reverse)?")
    return (p for n, p in layer.named_parameters(recurse=False) if plain.fullmatch(n))


def _plain(layer: nn.RNNBase | nn.RNNCellBase, prefix: str) -> list[Tensor]:
    """Return the parameters of a prefix in all layers and directions.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight of the prefix is pruned or parametrized.
    """
    if not isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        raise TypeError(
            f"layer must be a recurrent layer or cell, got a {type(layer).__name__}: give each "
            "layer of a model by itself"
        )
    found = list(_named(layer, prefix))
    needed = ("weight_ih", "weight_hh")
    of_cell = [*needed, "bias_ih", "bias_hh"] if layer.bias else [*needed]
    names = layer._flat_weights_names if isinstance(layer, nn.RNNBase) else of_cell
    # a weight that is not a plain parameter would be skipped silently
    other = [name for name in names if name.startswith(prefix) and name not in layer._parameters]
    if other or (not found and prefix in needed):
        raise ValueError(f"layer must have plain parameters {prefix}*, got {layer}")
    return found


def _matrices(layer: nn.RNNBase | nn.RNNCellBase, *prefixes: str) -> list[Tensor]:
    """Return the weights of prefixes without an IndRNN's vectors, which no recipe draws anew."""
    found = [weight for prefix in prefixes for weight in _plain(layer, prefix)]
    return [weight for weight in found if weight.dim() == 2]


def _each_gate(
    layer: nn.RNNBase | nn.RNNCellBase, fill: Callable[[Tensor], object], *prefixes: str
) -> None:
    found = [(prefix, weight) for prefix in prefixes for weight in _matrices(layer, prefix)]
    size, heads = layer.hidden_size, getattr(getattr(layer, "cell", None), "heads", 1)
    for prefix, weight in found:
        # each head has a square matrix of its own in each gate
        by_head = prefix == "weight_hh" and weight.size(1) * heads == size
        for block in torch.split(weight, size // heads if by_head else size):
            fill(block)


@torch.no_grad()
def orthogonal_(layer: Layer) -> Layer:
    """Draw every gate's block of every weight matrix orthogonal (Saxe et al. 2014).

    In a recurrent matrix with heads, each head's block of a gate is drawn orthogonal.

    Args:
        layer: its ``weight_ih``, ``weight_hh``, ``weight_hr`` and ``weight_ah`` are changed; matrix
            peepholes and the output weights of an HMLSTM are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight is pruned or parametrized.
    """
    _each_gate(layer, nn.init.orthogonal_, *_MATRICES)
    return layer


@torch.no_grad()
def joint_orthogonal_(layer: Layer) -> Layer:
    """Draw every weight matrix orthogonal as a whole, all gates jointly.

    The released code of Cooijmans et al. 2016 does this for text. The entries of an LSTM are half
    as large as with :func:`orthogonal_`, which draws each gate separately.

    Args:
        layer: its ``weight_ih``, ``weight_hh``, ``weight_hr`` and ``weight_ah`` are changed; matrix
            peepholes and the output weights of an HMLSTM are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight is pruned or parametrized.
    """
    for weight in _matrices(layer, *_MATRICES):
        nn.init.orthogonal_(weight)
    return layer


@torch.no_grad()
def identity_(layer: Layer) -> Layer:
    """Set every gate's block of the recurrent matrices to the identity (Le et al. 2015).

    The vector of an IndRNN, the diagonal of a matrix, is set to ones. With heads, each head's block
    of a gate is set to the identity.

    Args:
        layer: its ``weight_hh_*`` parameters are changed.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight is pruned or parametrized.
    """
    _each_gate(layer, nn.init.eye_, "weight_hh")
    for weight in _plain(layer, "weight_hh"):
        if weight.dim() == 1:
            weight.fill_(1.0)
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
    if not biases or not _has_forget_gate(layer):
        raise ValueError(f"layer must be an LSTM with bias=True, got {layer}")
    for (forget,) in _gates(layer, 1):
        forget.fill_(value)
    return layer


@torch.no_grad()
def update_bias_(layer: Layer, value: float = 1.0) -> Layer:
    """Set the update gate's bias of a GRU or LiGRU, ``b_ih + b_hh``, to ``value``.

    Here ``h_t = (1 - z) n + z h_{t-1}``: a positive value keeps the state longer. Where a paper has
    ``h_t = u n + (1 - u) h_{t-1}``, as Dreamer with a bias of -1, the sign is the other one.

    Args:
        layer: a GRU or LiGRU with biases.
        value: the sum of the two biases.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if ``layer`` has no update gate or no bias, or a bias is pruned or parametrized.
    """
    biases, gate = _plain(layer, "bias_ih"), _update_gate(layer)
    if not biases or gate is None:
        raise ValueError(f"layer must be a GRU or LiGRU with bias=True, got {layer}")
    for (update,) in _gates(layer, gate):
        update.fill_(value)
    return layer


@torch.no_grad()
def chrono_(layer: Layer, longest: float) -> Layer:
    """Draw the biases of the gates for memories of 1 to ``longest`` steps (Tallec & Ollivier 2018).

    The forget gate's bias, ``b_ih + b_hh``, is drawn from log U(1, longest - 1), and the input
    gate's is minus that. A GRU or LiGRU has one gate for both, z, with the first of the two.

    Args:
        layer: an LSTM, GRU or LiGRU with biases; its other biases stay.
        longest: T_max of the paper, at least 2: the longest dependency in steps, such as the length
            of the sequences.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell, or ``longest`` is not a number.
        ValueError: if ``longest`` is less than 2, if ``layer`` has none of these gates or no bias,
            or a bias is pruned or parametrized.
    """
    check_number("longest", longest, 2.0)
    biases, update = _plain(layer, "bias_ih"), _update_gate(layer)
    gates = (1, 0) if _has_forget_gate(layer) else () if update is None else (update,)
    if not biases or not gates:
        raise ValueError(f"layer must be an LSTM, GRU or LiGRU with bias=True, got {layer}")
    for forget, *enter in _gates(layer, *gates):
        forget.uniform_(1.0, longest - 1.0).log_()
        for bias in enter:
            bias.copy_(-forget)
    return layer


def _gates(layer: nn.RNNBase | nn.RNNCellBase, *gates: int) -> Iterator[list[Tensor]]:
    """Yield the rows of gates in each ``bias_ih``, for which those in ``bias_hh`` are set to 0."""
    for bias in _plain(layer, "bias_hh"):
        blocks = torch.split(bias, layer.hidden_size)
        for gate in gates:
            blocks[gate].zero_()
    for bias in _plain(layer, "bias_ih"):
        blocks = torch.split(bias, layer.hidden_size)
        yield [blocks[gate] for gate in gates]


def _has_forget_gate(layer: nn.Module) -> bool:
    lstms = (nn.LSTM, nn.LSTMCell)
    return isinstance(layer, lstms) or isinstance(getattr(layer, "cell", None), LSTM)


def _update_gate(layer: nn.Module) -> int | None:
    """Return the index of the update gate z among the gates, None without."""
    cell = getattr(layer, "cell", None)
    if isinstance(layer, (nn.GRU, nn.GRUCell)) or isinstance(cell, GRU):
        return 1
    return 0 if isinstance(cell, LiGRU) else None


def _candidate(weight: Tensor, size: int) -> int:
    """Return the candidate's first row; the gate orders are i f g o, r z n, z n, or one block."""
    return min(2 * size, weight.size(0) - size)


def _forget_gate_open(layer: Layer, biases: list[Tensor]) -> Layer:
    """Set all biases of a layer to zero, but the bias of an LSTM's forget gate to 1."""
    for bias in biases:
        nn.init.zeros_(bias)
    return forget_bias_(layer) if biases and _has_forget_gate(layer) else layer


@torch.no_grad()
def cooijmans2016_(layer: Layer) -> Layer:
    """Initialise as the released code of Cooijmans et al. 2016 does for pixels.

    Recurrent weights: the identity for the candidate, one orthogonal matrix for all gates. Input
    weights: one orthogonal matrix for candidate and gates. Biases: zero, but 1 for the forget gate
    of an LSTM. With ``learn_initial_state="from_input"`` every unit of h_0 begins as the mean of
    the sequence's values. In a cell of your own the third gate counts as the candidate, or the last
    one if there are fewer. A recurrent matrix with a projection or heads has no identity.

    Args:
        layer: its weights and biases are changed; peepholes, an HMLSTM's output weights, γ
            and β are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight or bias is pruned or parametrized.
    """
    biases = _plain(layer, "bias")
    joint_orthogonal_(layer)
    size = layer.hidden_size
    for weight in _matrices(layer, "weight_hh"):
        if weight.size(1) == size:
            start = _candidate(weight, size)
            gates = nn.init.orthogonal_(weight.new_empty(weight.size(0) - size, size))
            identity = torch.eye(size, device=weight.device, dtype=weight.dtype)
            weight.copy_(torch.cat((gates[:start], identity, gates[start:])))
    _begin_at_mean(layer)
    return _forget_gate_open(layer, biases)


def _begin_at_mean(layer: nn.RNNBase | nn.RNNCellBase) -> None:
    """Let every unit of h_0 begin as the mean of the sequence's values, where it is learned so."""
    for weight in _named(layer, "h_0_weight"):
        nn.init.constant_(weight, 1 / layer.input_size)


@torch.no_grad()
def cooijmans2016_by_gate_(layer: Layer) -> Layer:
    """Initialise as :func:`cooijmans2016_`, but with an orthogonal matrix for each gate.

    An LSTM's recurrent gates are √3 times and its input weights twice as large as in the released
    code. Batch normalisation hides the difference; for a plain LSTM it matters.

    Args:
        layer: its weights and biases are changed; peepholes, an HMLSTM's output weights, γ
            and β are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight or bias is pruned or parametrized.
    """
    biases = _plain(layer, "bias")
    orthogonal_(layer)
    size = layer.hidden_size
    for weight in _matrices(layer, "weight_hh"):
        if weight.size(1) == size:
            start = _candidate(weight, size)
            nn.init.eye_(weight[start : start + size])
    _begin_at_mean(layer)
    return _forget_gate_open(layer, biases)


@torch.no_grad()
def cooijmans2016_draft_(layer: Layer) -> Layer:
    """Initialise by the words of the first version of Cooijmans et al. 2016.

    Recurrent weights: the identity for every gate, where :func:`cooijmans2016_` has it for the
    candidate alone. All other weights: an orthogonal matrix for each gate. Biases: zero, but 1 for
    the forget gate of an LSTM.

    Args:
        layer: its weights and biases are changed; peepholes, an HMLSTM's output weights, γ
            and β are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight or bias is pruned or parametrized.
    """
    biases = _plain(layer, "bias")
    orthogonal_(layer)
    _each_gate(layer, nn.init.eye_, "weight_hh")
    return _forget_gate_open(layer, biases)


@torch.no_grad()
def laurent2015_(layer: Layer) -> Layer:
    """Initialise as Laurent et al. 2015 do for speech: Glorot uniform per gate, zero biases.

    Args:
        layer: its weights and biases are changed; peepholes, an HMLSTM's output weights, γ
            and β are not.

    Raises:
        TypeError: if ``layer`` is not a recurrent layer or cell.
        ValueError: if a weight or bias is pruned or parametrized.
    """
    biases = _plain(layer, "bias")
    _each_gate(layer, nn.init.xavier_uniform_, *_MATRICES)
    for bias in biases:
        nn.init.zeros_(bias)
    return layer
