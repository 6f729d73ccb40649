"""Converters of libraries with an RNN, an LSTM and a GRU: torch.nn and haste."""

from __future__ import annotations

import re
from typing import Any

from rnnorm.convert.stack import (
    Position,
    StateDict,
    build,
    check_names,
    check_shape,
    gates,
    path_of,
    read,
)
from rnnorm.layers.gru import GRU
from rnnorm.layers.lstm import LSTM
from rnnorm.layers.more_cells import IndRNN
from rnnorm.layers.recurrent_dropout import Zoneout
from rnnorm.layers.rnn import RNN
from rnnorm.norm.presets import PRESETS
from rnnorm.norm.spec import LayerNorm


def torch_nn(
    state_dict: StateDict, *, nonlinearity: str = "tanh", **options: Any
) -> RNN | LSTM | GRU:
    """Return the layer of a ``torch.nn.RNN``, ``LSTM`` or ``GRU``; the shapes tell which.

    Args:
        state_dict: weights of one of these, of a one-step class such as ``torch.nn.LSTMCell``, or
            of a numbered list of such cells, one for each layer.
        nonlinearity: ``"tanh"`` or ``"relu"``, of an RNN.
        **options: arguments of the class, but no ``norm``. What no weight shows has to be given:
            ``batch_first``, ``dropout``.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, a shape does not fit, there is a ``norm``, or
            ``nonlinearity`` is given for weights that are not an RNN's.
    """
    check_names(state_dict)
    if options.get("norm") is not None:
        raise ValueError(
            "norm must be None, as torch.nn's layers have none: make a layer with the norm, and "
            "give it the weights by layer.load_state_dict(state_dict, strict=False)"
        )
    matrices, biases = ("weight_ih", "weight_hh"), ("bias_ih", "bias_hh")
    weights = read(state_dict, matrices, (), biases, ("weight_hr",), path=_torch_path)
    rows, width = weights[Position()]["weight_hh"].shape
    if rows == width:
        return build(RNN, weights, options, nonlinearity=nonlinearity)
    if nonlinearity != "tanh":
        raise ValueError(
            f"nonlinearity must be 'tanh' for weights that are not an RNN's, got {nonlinearity!r}"
        )
    if "weight_hr" in weights[Position()]:
        return build(LSTM, weights, options, hidden_size=rows // 4, proj_size=width)
    if rows == 3 * width:
        return build(GRU, weights, options)
    return build(LSTM, weights, options)


def _torch_path(key: str) -> str:
    """Return the name of a weight of torch.nn with its layer and direction before it."""
    found = re.fullmatch(r"(.*\.)?((?:weight|bias)_(?:ih|hh|hr))(_l\d+)?(_reverse)?", key)
    if found is None:
        raise ValueError(f"state_dict must have the weights of torch.nn's layer, got {key!r}")
    before, kind, layer, reverse = found.groups(default="")
    # torch numbers a layer behind its weight's name, and a list of cells before it
    number = f"{layer[2:]}." if layer else ""
    return f"{before}{number}directions.{len(reverse) // 8}.{kind}"


def haste(state_dict: StateDict, *, zoneout: float = 0.0, **options: Any) -> LSTM | GRU | IndRNN:
    """Return the layer of haste's LSTM, GRU or IndRNN, or of its LayerNorm class of each.

    Args:
        state_dict: ``kernel``, ``recurrent_kernel``, ``bias``, ``gamma`` and so on.
        zoneout: probability for a unit of h.
        **options: arguments of the class.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    check_names(state_dict)
    last = {path_of(key).rpartition(".")[2] for key in state_dict}
    kind = "IndRNN" if "recurrent_scale" in last else "GRU" if "recurrent_bias" in last else "LSTM"
    matrices = ["kernel"] if kind == "IndRNN" else ["kernel", "recurrent_kernel"]
    vectors = {
        "IndRNN": ["bias", "recurrent_scale"],
        "GRU": ["bias", "recurrent_bias"],
        "LSTM": ["bias"],
    }[kind]
    norm_names = ["gamma", "gamma_h", "beta_h"] if kind == "LSTM" else ["gamma"]
    if zoneout:
        options = {"recurrent_dropout": Zoneout(cell=0.0, hidden=zoneout), **options}
    # i g f o, z r n, one block
    order = {"LSTM": (0, 2, 1, 3), "GRU": (1, 0, 2), "IndRNN": (0,)}[kind]
    weights, normalised = {}, False
    for position, given in read(state_dict, matrices, vectors, norm_names).items():
        own = {
            "weight_ih": gates(given["kernel"].t(), order),
            "bias_ih": gates(given["bias"], order),
        }
        if kind == "IndRNN":
            own["weight_hh"] = given["recurrent_scale"]
        else:
            own["weight_hh"] = gates(given["recurrent_kernel"].t(), order)
        if kind == "GRU":
            own["bias_hh"] = gates(given["recurrent_bias"], order)
        if "gamma" in given:
            normalised = True
            check_shape("gamma", given["gamma"], (2, len(own["weight_ih"])))
            scales = gates(given["gamma"], order, 1)
            own |= {"gamma_input": scales[0], "gamma_recurrent": scales[1]}
        if "gamma_h" in given:
            own |= {"gamma_cell": given["gamma_h"], "beta_cell": given["beta_h"]}
        weights[position] = own
    if kind == "IndRNN":
        own_norm = LayerNorm(recurrent=False, cell=False) if normalised else None
        return build(IndRNN, weights, options, norm=own_norm, nonlinearity="tanh")
    norm = PRESETS["haste"] if normalised else None
    if kind == "GRU":
        return build(GRU, weights, options, norm=norm)
    return build(LSTM, weights, options, norm=norm)
