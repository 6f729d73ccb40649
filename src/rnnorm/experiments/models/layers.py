"""The recurrent layer that a recipe describes, and its initialisation."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import parametrizations

import rnnorm

#: the classes that a recipe may name, with the options that the classes do not share
CELLS = {
    "LSTM": ("bias", "peephole"),
    "GRU": ("bias", "reset_after"),
    "RNN": ("bias", "nonlinearity"),
    "LiGRU": ("bias", "nonlinearity"),
    "IndRNN": ("bias", "nonlinearity"),
    "MIRNN": ("bias",),
    "ClockworkRNN": ("bias", "periods"),
    "HMLSTM": ("bias", "boundary", "slope"),
}
_NORMS = {"batch": rnnorm.BatchNorm, "layer": rnnorm.LayerNorm, "rms": rnnorm.RMSNorm}
_DROPOUTS = {
    spec.__name__: spec for spec in (rnnorm.Zoneout, rnnorm.CellDropout, rnnorm.SequenceDropout)
}


def recurrent(
    cell: str,
    input_size: int,
    hidden_size: int,
    norm: str | None = None,
    norm_options: dict[str, Any] | None = None,
    initial_noise: float = 0.0,
    cell_options: dict[str, Any] | None = None,
    recurrent_dropout: str | None = None,
    recurrent_dropout_options: dict[str, Any] | None = None,
    **arguments: Any,
) -> nn.RNNBase:
    """Make a recurrent layer.

    Args:
        cell: name of a class of :mod:`rnnorm`, see ``CELLS``.
        input_size: inputs of the layer.
        hidden_size: units of the layer.
        norm: None, ``"batch"``, ``"layer"``, ``"rms"``, or a preset's name.
        norm_options: fields of the norm's spec, such as :class:`rnnorm.BatchNorm`, to change.
        initial_noise: standard deviation of the noise on h_0; 0 by default, unlike in the class.
        cell_options: arguments in ``CELLS``, such as ``{"peephole": "output"}``.
        recurrent_dropout: None, or the name of a spec: ``"Zoneout"``, ``"CellDropout"`` or
            ``"SequenceDropout"``.
        recurrent_dropout_options: fields of that spec to change.
        **arguments: arguments that the classes share.

    Raises:
        ValueError: if a name is unknown, options are given without a class that takes them, or an
            :class:`rnnorm.HMLSTM` is to be bidirectional or have dropout between layers.
        TypeError: if an option or a spec is unknown.
    """
    if cell not in CELLS:
        raise ValueError(f"cell must be one of {', '.join(map(repr, CELLS))}, got {cell!r}")
    if cell == "HMLSTM":
        for name in ("bidirectional", "dropout"):
            if given := arguments.pop(name, False):
                raise ValueError(f"{name} must be {type(given)(0)} for an HMLSTM, got {given}")
    if unknown := [name for name in cell_options or {} if name not in CELLS[cell]]:
        raise TypeError(
            f"cell_options of {cell} must be of {', '.join(CELLS[cell])}, got {unknown[0]!r}"
        )
    dropped = _spec("recurrent_dropout", recurrent_dropout, recurrent_dropout_options, _DROPOUTS)
    layer: nn.RNNBase = getattr(rnnorm, cell)(
        input_size,
        hidden_size,
        norm=_spec("norm", norm, norm_options, _NORMS),
        initial_noise=initial_noise,
        recurrent_dropout=dropped,
        **(cell_options or {}),
        **arguments,
    )
    return layer


def normalise_weights(rnn: nn.RNNBase) -> None:
    """Make direction and length of every row of the recurrent weights separate parameters.

    ``w = g v / ‖v‖`` (Salimans & Kingma 2016); the values of the weights do not change. The weights
    are not plain parameters afterwards, so call :func:`initialise` before.

    Args:
        rnn: the layer.
    """
    for name in [name for name, _ in rnn.named_parameters() if name.startswith("weight_hh")]:
        parametrizations.weight_norm(rnn, name)


def initialise(rnn: nn.Module, name: str | None, classifier: nn.Linear | None = None) -> None:
    """Draw a layer's weights by a recipe of :mod:`rnnorm.init`; biases are 0 unless it sets them.

    Args:
        rnn: the layer.
        name: name of the recipe, without its underscore; None leaves the weights as they are.
        classifier: the linear layer on top: it gets Glorot weights if the recipe's are
            (``"laurent2015"``), else orthogonal weights, and zero biases.

    Raises:
        ValueError: if there is no such recipe.
    """
    if name is None:
        return
    functions = vars(rnnorm.init).items()
    recipes = {n[:-1]: f for n, f in functions if n.endswith("_") and n[0] != "_"}
    # it needs the length of the memories
    del recipes["chrono"]
    if name not in recipes:
        raise ValueError(f"init must be None or one of {sorted(recipes)}, got {name!r}")
    for parameter, values in rnn.named_parameters():
        if parameter.startswith("bias_"):
            nn.init.zeros_(values)
    recipes[name](rnn)
    if classifier is not None:
        glorot = name == "laurent2015"
        (nn.init.xavier_uniform_ if glorot else nn.init.orthogonal_)(classifier.weight)
        nn.init.zeros_(classifier.bias)


def set_forget_bias(rnn: nn.RNNBase, value: float | None) -> None:
    """Set the forget gate's bias, unless ``value`` is None.

    Raises:
        ValueError: if the layer is not an LSTM with biases.
    """
    if value is None:
        return
    try:
        rnnorm.init.forget_bias_(rnn, value)
    except ValueError:
        raise ValueError(
            f"forget_bias must be None (null) except for an LSTM with biases, got {value} for {rnn}"
        ) from None


def _spec(
    argument: str, name: str | None, options: dict[str, Any] | None, specs: dict[str, Any]
) -> Any:
    """Return the spec of a name with some fields changed; other names are left to the layer."""
    if name in specs:
        return specs[name](**(options or {}))
    if options:
        *others, last = map(repr, specs)
        known = f"{', '.join(others)} or {last}"
        raise ValueError(
            f"{argument}_options need {argument} to be {known}, got {name!r}: null removes them"
        )
    return name
