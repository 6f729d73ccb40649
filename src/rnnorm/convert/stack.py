"""Reading of a state_dict as a stack of layers, and building of ours, for all converters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.norm.presets import PRESETS
from rnnorm.norm.spec import Norm

StateDict = Mapping[str, Any]
Own = TypeVar("Own", bound=SequenceLayer)


class Position(NamedTuple):
    """The position of a layer in a stack."""

    layer: int = 0
    direction: int = 0


def check_names(state: StateDict) -> None:
    """Check that weights are given by their names.

    Raises:
        TypeError: if they are not, as where a module is given.
    """
    if not isinstance(state, Mapping) or not all([isinstance(key, str) for key in state]):
        raise TypeError(
            "state_dict must have weights by name, as what state_dict() of a module returns, got "
            f"{type(state).__name__}"
        )


def path_of(key: str) -> str:
    """Return a weight's name with dots, as PyTorch has them, from TensorFlow's or PyTorch's."""
    return key.removesuffix(":0").replace("/", ".")


def read(
    state: StateDict,
    matrices: Sequence[str],
    vectors: Sequence[str],
    *optional: Sequence[str],
    ignored: Sequence[str] = (),
    path: Callable[[str], str] = path_of,
) -> dict[Position, dict[str, Tensor]]:
    """Return the weights of each layer of a stack by the names that one layer has.

    Args:
        state: the weights of all layers.
        matrices: names of the matrices that each layer has.
        vectors: names of the vectors that each layer has.
        *optional: groups of names, each of which all layers have, or none.
        ignored: names of what is not a weight.
        path: returns a weight's name with its layer and ``directions`` as parts before it.

    Raises:
        TypeError: if the weights are not given by name, or one is not a tensor or an array of
            floating point numbers.
        ValueError: if a name is missing or unknown, a matrix does not have two dimensions or a
            vector one, or layers are not numbered from 0 on.
    """
    check_names(state)
    positions: dict[Position, dict[str, Tensor]] = {}
    needed = [*matrices, *vectors]
    known = (*needed, *[name for group in optional for name in group], *ignored)
    for key, value in state.items():
        whole = path(key)
        # a name may be the end of another
        names = [name for name in known if f".{whole}".endswith(f".{name}")]
        if not names:
            raise ValueError(
                f"state_dict must have the weights of the layer alone, {', '.join(known)}, got "
                f"{key!r}: give the part of the model that is the layer"
            )
        name = max(names, key=len)
        if name in ignored:
            continue
        prefix = whole.removesuffix(name)
        direction = re.findall(r"(?:^|\.)directions\.(\d+)(?=\.)", prefix)
        # the number of a layer is the last one
        numbers = re.findall(r"(?:^|\.)(\d+)(?=\.)", re.sub(r"directions\.\d+\.", "", prefix))
        position = Position(*[int(found[-1]) if found else 0 for found in (numbers, direction)])
        own = positions.setdefault(position, {})
        if name in own:
            raise ValueError(f"state_dict must have one {name} for each layer, got {key!r} too")
        place = f"{name} of layer {position.layer}"
        try:
            own[name] = torch.as_tensor(value).detach()
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{place} must be a tensor or an array: {error}") from error
        if name in needed and not own[name].is_floating_point():
            raise TypeError(f"{place} must have floating point numbers, got {own[name].dtype}")
        for kind, of_kind in {"vector": vectors, "matrix": matrices}.items():
            if name in of_kind and own[name].dim() != 1 + (kind == "matrix"):
                shape = tuple(own[name].shape)
                raise ValueError(f"{place} must be a {kind}, got the shape {shape}")
    first = min((position.layer for position in positions), default=0)
    moved = {Position(p.layer - first, p.direction): own for p, own in sorted(positions.items())}
    found = {name for own in moved.values() for name in own}
    needed += [name for group in optional if not found.isdisjoint(group) for name in group]
    layers, directions = (1 + max((p[i] for p in moved), default=0) for i in (0, 1))
    for position in [Position(k, d) for k in range(layers) for d in range(directions)]:
        if missing := [name for name in needed if name not in moved.get(position, {})]:
            raise ValueError(
                f"state_dict must have {missing[0]} of layer {position.layer + first}, got "
                f"{', '.join(moved.get(position, {})) or 'none'}"
            )
    return moved


def build(
    cls: Callable[..., Own],
    weights: Mapping[Position, Mapping[str, Tensor]],
    options: Mapping[str, Any],
    **fixed: Any,
) -> Own:
    """Return a layer with weights by the names of its parameters, without their suffixes.

    Args:
        cls: class of the layer.
        weights: weights of each position; biases that are left out are zero.
        options: arguments of the class that the caller of a converter chooses.
        **fixed: arguments of the class that the original has, besides those that the shapes tell.

    Raises:
        TypeError: if an option is another than the original and the shapes tell.
        ValueError: if a weight is missing, or has another shape than the layer's.
    """
    first = weights[Position()]
    fixed = {
        "input_size": first["weight_ih"].size(1),
        # a matrix, or an IndRNN's vector
        "hidden_size": first["weight_hh"].size(-1),
        "num_layers": 1 + max(position.layer for position in weights),
        "bidirectional": any(position.direction for position in weights),
        "bias": any("bias_ih" in own for own in weights.values()),
        "dtype": first["weight_ih"].dtype,
        "device": first["weight_ih"].device,
        **fixed,
    }
    for name, value in fixed.items():
        if name in options and options[name] != value:
            raise TypeError(
                f"{name} must be left out, got {options[name]!r}: the weights tell that it is "
                f"{value!r}"
            )
    layer = cls(**{**options, **fixed})
    for position, own in weights.items():
        suffix = f"_l{position.layer}" + "_reverse" * position.direction
        for name, parameter in layer.named_parameters():
            if not name.endswith(suffix):
                continue
            kind = name.removesuffix(suffix)
            value = own.get(kind)
            if value is None and kind.startswith("bias"):
                value = torch.zeros_like(parameter)
            if value is None or value.shape != parameter.shape:
                found = "none" if value is None else tuple(value.shape)
                raise ValueError(
                    f"{kind} of layer {position.layer} must have shape {tuple(parameter.shape)}, "
                    f"got {found}: the weights are not those of one {type(layer).__name__}"
                )
            with torch.no_grad():
                parameter.copy_(value)
    return layer


def renamed(
    layers: Mapping[Position, Mapping[str, Tensor]], names: Mapping[str, str]
) -> dict[Position, dict[str, Tensor]]:
    """Return the weights of each layer by other names."""
    return {
        position: {names[name]: value for name, value in own.items()}
        for position, own in layers.items()
    }


def gates(value: Tensor, order: Sequence[int], dim: int = 0) -> Tensor:
    """Return the blocks of gates in another order.

    Raises:
        ValueError: if the dimension does not divide into as many gates.
    """
    if value.dim() <= dim or value.size(dim) % len(order):
        raise ValueError(
            f"a weight must have {len(order)} gates of equal size in dimension {dim}, got the "
            f"shape {tuple(value.shape)}"
        )
    blocks = value.chunk(len(order), dim)
    return torch.cat([blocks[k] for k in order], dim)


def halves(value: Tensor, hidden_size: int) -> tuple[Tensor, Tensor]:
    """Return the parts of a matrix ``(·, I + H)`` that read the input and h.

    Raises:
        ValueError: if there is no column for an input.
    """
    if value.size(1) <= hidden_size:
        raise ValueError(
            f"a matrix for the input and {hidden_size} units must read more than {hidden_size} "
            f"numbers, got {value.size(1)}"
        )
    weight_ih, weight_hh = torch.split(value, [value.size(1) - hidden_size, hidden_size], 1)
    return weight_ih, weight_hh


def check_shape(name: str, value: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a weight, after a check of its shape, where an operator would broadcast it.

    Raises:
        ValueError: if it has another shape.
    """
    if value.shape != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(value.shape)}")
    return value


def check_no_bias(layers: Mapping[Position, Mapping[str, Tensor]], name: str) -> None:
    """Check that a sum which is normalised has no bias within the norm.

    Raises:
        ValueError: if it has, which a layer of rnnorm cannot compute.
    """
    if any(name in own for own in layers.values()):
        raise ValueError(
            f"state_dict must have no {name} where there is a norm: the original adds it before "
            "the norm, and rnnorm adds its bias after the norm"
        )


def preset(name: str, eps: float) -> Norm:
    """Return the norm of a formulation with another ε."""
    return replace(PRESETS[name], eps=eps)  # type: ignore[type-var]
