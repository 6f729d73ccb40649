"""What tasks share: the recurrent layer that a recipe's words describe."""

from __future__ import annotations

from typing import Any

from torch import nn

import rnnorm

CELLS = ("LSTM", "GRU", "RNN")


def recurrent(
    cell: str,
    input_size: int,
    hidden_size: int,
    norm: str | None = None,
    norm_options: dict[str, Any] | None = None,
    initial_noise: float = 0.0,
    **arguments: Any,
) -> nn.RNNBase:
    """A recurrent layer.

    Args:
        cell: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        input_size: its inputs.
        hidden_size: its units.
        norm: None, ``"batch"``, ``"layer"``, or a preset's name.
        norm_options: fields of :class:`rnnorm.BatchNorm` or :class:`rnnorm.LayerNorm` to change.
        initial_noise: standard deviation of the noise on h_0; never the default of that class,
            which a paper does not know.
        **arguments: others of that class.

    Raises:
        ValueError: a name is unknown, or there are options for a preset.
    """
    if cell not in CELLS:
        raise ValueError(f"cell must be 'LSTM', 'GRU' or 'RNN', got {cell!r}")
    spec = _spec(norm, norm_options)
    arguments |= {"norm": spec, "initial_noise": initial_noise}
    layer: nn.RNNBase = getattr(rnnorm, cell)(input_size, hidden_size, **arguments)
    return layer


def initialise(rnn: nn.Module, name: str | None, classifier: nn.Linear | None = None) -> None:
    """Draw a layer's weights by a recipe of :mod:`rnnorm.init`, with zero biases where it has none.

    Args:
        rnn: the layer.
        name: of the recipe, without its underscore; None leaves the weights as they are.
        classifier: what stands on it: Glorot weights where the recipe's are (``"laurent2015"``),
            else orthogonal ones, and zero biases.

    Raises:
        ValueError: there is no such recipe.
    """
    if name is None:
        return
    recipe = getattr(rnnorm.init, f"{name}_", None)
    if recipe is None:
        known = sorted(n[:-1] for n in dir(rnnorm.init) if n.endswith("_") and n[0] != "_")
        raise ValueError(f"init must be None or one of {known}, got {name!r}")
    for parameter, values in rnn.named_parameters():
        if parameter.startswith("bias_"):
            nn.init.zeros_(values)
    recipe(rnn)
    if classifier is not None:
        glorot = name == "laurent2015"
        (nn.init.xavier_uniform_ if glorot else nn.init.orthogonal_)(classifier.weight)
        nn.init.zeros_(classifier.bias)


def _spec(norm: str | None, options: dict[str, Any] | None) -> Any:
    """The ``norm`` argument of the layer, with some of its fields changed."""
    if not options:
        return norm
    specs = {"batch": rnnorm.BatchNorm, "layer": rnnorm.LayerNorm}
    if norm not in specs:
        raise ValueError(f"norm_options need norm to be 'batch' or 'layer', got {norm!r}")
    return specs[norm](**options)
