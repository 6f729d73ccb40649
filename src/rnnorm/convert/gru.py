"""Converters of Dreamer's GRU and of speechbrain's light GRUs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rnnorm.convert.stack import (
    Position,
    StateDict,
    build,
    check_names,
    check_no_bias,
    check_shape,
    gates,
    halves,
    path_of,
    preset,
    read,
)
from rnnorm.layers.gru import GRU
from rnnorm.layers.more_cells import LiGRU
from rnnorm.norm.spec import LayerNorm, check_number


def dreamer(
    state_dict: StateDict, *, update_bias: float = -1.0, eps: float = 1e-3, **options: Any
) -> GRU:
    """Return the layer of the GRU cell in NM512/dreamerv3-torch or sheeprl; its names tell which.

    There ``h = u n + (1 - u) h``. The z of rnnorm is 1 - u, so γ and the bias of that gate change
    their sign; its weights do not, since one mean and variance is over all gates.

    Args:
        state_dict: of dreamerv3-torch ``layers.GRU_linear.weight`` and ``layers.GRU_norm.*`` (in
            older versions ``_layer.weight`` and ``_norm.*``), of sheeprl ``linear.weight`` and
            ``layer_norm.*``; without the norm the layer has none, and may have ``linear.bias``.
        update_bias: what the cell adds to the update gate.
        eps: of the norm.
        **options: arguments of the class.

    Raises:
        TypeError: if ``state_dict`` is a module, for example, or ``update_bias`` is not a number.
        ValueError: if a name is missing or unknown, a shape does not fit, or ``update_bias`` is not
            finite.
    """
    check_names(state_dict)
    check_number("update_bias", update_bias)
    names = {
        "GRU_linear": ("GRU_linear.weight", "GRU_norm.weight", "GRU_norm.bias"),
        "_layer": ("_layer.weight", "_norm.weight", "_norm.bias"),
        "linear": ("linear.weight", "layer_norm.weight", "layer_norm.bias"),
    }
    parts = {part for key in state_dict for part in path_of(key).split(".")}
    source = next((name for name in names if name in parts), "linear")
    matrix, scale, shift = names[source]
    bias_name = matrix.replace("weight", "bias")
    layers = read(state_dict, (matrix,), (), (scale, shift), (bias_name,))
    normalised = scale in layers[Position()]
    if normalised:
        check_no_bias(layers, bias_name)
    weights = {}
    for position, given in layers.items():
        weight = given[matrix]
        size = len(weight) // 3
        # sheeprl joins h and the input, dreamerv3-torch the input and h
        joined = weight.roll(-size, 1) if source == "linear" else weight
        weight_ih, weight_hh = halves(joined, size)
        for name in given.keys() & {scale, shift, bias_name}:
            check_shape(name, given[name], (len(weight),))
        bias = given.get(shift, given.get(bias_name, weight.new_zeros(3 * size))).clone()
        bias[2 * size :] += update_bias
        order = partial(gates, order=(0, 2, 1)) if normalised else _with_z
        weights[position] = {
            "weight_ih": order(weight_ih),
            "weight_hh": order(weight_hh),
            "bias_ih": _with_z(bias),
        }
        if normalised:
            weights[position]["gamma_joint"] = _with_z(given[scale])
    norm = preset("dreamer", eps) if normalised else None
    return build(GRU, weights, options, norm=norm, reset_after="both")


def _with_z(value: Tensor) -> Tensor:
    """Return the rows of r, n and u as those of r, z and n, where z = 1 - u."""
    r, n, u = value.chunk(3)
    return torch.cat((r, -u, n))


def speechbrain_ligru(
    state_dict: StateDict, *, bidirectional: bool = False, eps: float = 1e-5, **options: Any
) -> LiGRU:
    """Return the layer of speechbrain's ``LiGRU``, or of ``LiGRU_Layer``.

    Both of its directions have the same weights; those of rnnorm begin as copies. In training its
    statistics count padding, which rnnorm's do not.

    Args:
        state_dict: ``w.weight``, ``u.weight`` and ``norm.*``, of batch or layer norm.
        bidirectional: whether the layer is.
        eps: of the norm.
        **options: arguments of the class, such as ``nonlinearity``.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    return _speechbrain(state_dict, None, bidirectional, eps, options)


def speechbrain_sligru(
    state_dict: StateDict, *, bidirectional: bool = False, eps: float = 1e-5, **options: Any
) -> LiGRU:
    """Return the layer of speechbrain's ``SLiGRU``: a LiGRU with layer norm of the recurrent term.

    What :func:`speechbrain_ligru` says of directions and padding holds here too.

    Args:
        state_dict: as of ``LiGRU``, and ``layer_norm.*`` with ``recurrent_elementwise_affine``.
        bidirectional: whether the layer is.
        eps: of the two norms.
        **options: arguments of the class, such as ``nonlinearity``.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    return _speechbrain(state_dict, LayerNorm(eps=eps), bidirectional, eps, options)


def _speechbrain(
    state_dict: StateDict,
    recurrent: LayerNorm | None,
    bidirectional: bool,
    eps: float,
    options: Mapping[str, Any],
) -> LiGRU:
    """Return the layer of a LiGRU, whose recurrent term may have a layer norm."""
    running = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    optional: list[tuple[str, ...]] = [running]
    optional += [("layer_norm.weight", "layer_norm.bias")] if recurrent else []
    ignored = ("h_init", "drop_mask_te", "drop_masks")
    layers = read(
        state_dict,
        ("w.weight", "u.weight"),
        ("norm.weight", "norm.bias"),
        *optional,
        ignored=ignored,
    )
    weights = {}
    for position, given in layers.items():
        # the candidate comes first
        own = {
            name: gates(given[theirs], (1, 0))
            for name, theirs in {
                "weight_ih": "w.weight",
                "weight_hh": "u.weight",
                "gamma_input": "norm.weight",
                "bias_ih": "norm.bias",
                "gamma_recurrent": "layer_norm.weight",
                "bias_hh": "layer_norm.bias",
            }.items()
            if theirs in given
        }
        if recurrent and "gamma_recurrent" not in own:
            own["gamma_recurrent"] = torch.ones_like(own["gamma_input"])
        for direction in range(1 + bidirectional):
            weights[position._replace(direction=direction)] = own
    batch = running[0] in layers[Position()]
    norm: Any = preset("ligru", eps) if batch else LayerNorm(recurrent=False, eps=eps)
    if recurrent:
        norm = {"input": norm, "recurrent": recurrent}
    layer = build(LiGRU, weights, options, norm=norm)
    for position in weights if batch else ():
        given = layers[Position(position.layer)]
        name = f"population_input_l{position.layer}" + "_reverse" * position.direction
        population: Any = layer.get_submodule(name)
        for moment, theirs in zip((population.mean, population.var), running[:2], strict=True):
            moment.copy_(gates(check_shape(theirs, given[theirs], moment.shape[1:]), (1, 0)))
        # torch does not count the frames
        for count in (population.num_batches_tracked, population.rows):
            count.copy_(check_shape(running[2], given[running[2]], ()))
    return layer
