"""Folding: a copy of a model with plain torch.nn layers, if that is exact."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from rnnorm.layers.gru import GRU, GRUCell
from rnnorm.layers.lstm import LSTM, LSTMCell
from rnnorm.layers.normalised_module import warn_without_statistic
from rnnorm.layers.one_step import OneStep
from rnnorm.layers.rnn import RNN, RNNCell
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.layers.stateful import Stateful
from rnnorm.model.freeze import UNDO_FIRST
from rnnorm.norm.moments import scale_of
from rnnorm.norm.population import Population
from rnnorm.norm.spec import BatchNorm

Model = TypeVar("Model", bound=nn.Module)

_SEQUENCES: dict[type, Callable[..., nn.Module]] = {RNN: nn.RNN, LSTM: nn.LSTM, GRU: nn.GRU}
_CELLS: dict[type, Callable[..., nn.Module]] = {
    RNNCell: nn.RNNCell,
    LSTMCell: nn.LSTMCell,
    GRUCell: nn.GRUCell,
}


def fold(model: Model) -> Model:
    """Copy a model with its layers as torch.nn's, the statistics multiplied into the weights.

    This is exact for a GRU or RNN with batch normalisation at any of its sites, for an LSTM whose
    cell and carry sites are not normalised, and for all three without a norm. All steps must share
    one row of statistics: ``population="shared"`` or, for the input, the sequence scope. The layers
    of the copy take no ``lengths``, ``step`` or ``reset``. A warning says if no statistic was taken
    yet.

    Args:
        model: a layer of rnnorm, or a model with some; it is not changed.

    Returns:
        the copy, in evaluation; torch's ``quantize_dynamic`` and fused kernels take it.

    Raises:
        ValueError: if the copy of a layer would compute another function (the message names the
            layer, and the site or option), or a layer has forward hooks, as from pruning, or is
            wrapped by ``torch.compile``.
    """
    for name, module in model.named_modules():
        _refuse(module, name or type(module).__name__)
    plain = copy.deepcopy(model).eval()
    folded: dict[nn.Module, nn.Module] = {}
    for name, module in plain.named_modules():
        if isinstance(module, SequenceLayer):
            folded[module] = _sequence(module, name or type(module).__name__)
        elif isinstance(module, OneStep):
            folded[module] = _step(module, name or type(module).__name__)
    for module in list(plain.modules()):
        for name, child in module._modules.items():
            if child in folded:
                module._modules[name] = folded[child]
    warn_without_statistic(model)
    return folded.get(plain, plain)  # type: ignore[return-value]


def _refuse(module: nn.Module, name: str) -> None:
    """Refuse layers whose weights may not be what runs, and those that torch.nn's do not serve."""
    if isinstance(module, Stateful):
        raise ValueError(
            f"{name}: Stateful passes step and reset, which torch.nn's layers do not take: fold "
            "its layer, and carry the states yourself"
        )
    ours = any(isinstance(own, SequenceLayer | OneStep) for own in module.modules())
    if ours and hasattr(module, "_orig_mod"):
        raise ValueError(
            f"{name}: it must not be compiled, since torch would run the layer as it was: fold "
            "first, then call torch.compile"
        )
    if not isinstance(module, SequenceLayer | OneStep):
        return
    if is_parametrized(module):
        raise ValueError(
            f"{name}: its weights must be plain parameters, got parametrized ones: call "
            "torch.nn.utils.parametrize.remove_parametrizations first"
        )
    if module._forward_pre_hooks or module._forward_hooks:
        raise ValueError(
            f"{name}: it must have no forward hooks, which may change its weights: {UNDO_FIRST}"
        )


def _sequence(layer: SequenceLayer, name: str) -> nn.Module:
    kind = _SEQUENCES.get(type(layer))
    reset_after = getattr(layer.cell, "reset_after", True)
    extra = {
        "learn_initial_state": layer.learn_initial_state,
        "recurrent_dropout": layer.recurrent_dropout,
        "peephole": getattr(layer.cell, "peephole", None),
        f"reset_after={reset_after!r}": reset_after is not True,
    }
    if kind is None or any(extra.values()):
        option = "" if kind is None else " with " + next(n for n, given in extra.items() if given)
        raise ValueError(f"{name}: torch.nn has no {type(layer).__name__}{option}")
    options: dict[str, Any] = {"proj_size": layer.proj_size} if layer.proj_size else {}
    if isinstance(layer, RNN):
        options["nonlinearity"] = layer.nonlinearity
    for option in ("num_layers", "batch_first", "dropout", "bidirectional"):
        options[option] = getattr(layer, option)
    # on meta, so that no random numbers are drawn
    plain: nn.Module = kind(
        layer.input_size,
        layer.hidden_size,
        bias=layer.bias or _shifts(layer),
        device="meta",
        dtype=layer.weight_ih_l0.dtype,
        **options,
    ).to_empty(device=layer.weight_ih_l0.device)
    for suffix in layer._suffixes():
        _fill(plain, layer, suffix, name)
        if layer.proj_size:
            _put(plain, f"weight_hr{suffix}", getattr(layer, f"weight_hr{suffix}"))
    return plain.eval()


def _step(cell: OneStep, name: str) -> nn.Module:
    kind = _CELLS.get(type(cell))
    if kind is None:
        raise ValueError(f"{name}: torch.nn has no {type(cell).__name__}")
    options = {"nonlinearity": cell.nonlinearity} if isinstance(cell, RNNCell) else {}
    plain: nn.Module = kind(
        cell.input_size,
        cell.hidden_size,
        cell.bias or _shifts(cell),
        device="meta",
        dtype=cell.weight_ih.dtype,
        **options,
    ).to_empty(device=cell.weight_ih.device)
    _fill(plain, cell, "", name)
    return plain.eval()


def _shifts(layer: SequenceLayer | OneStep) -> bool:
    """Tell whether means have to be subtracted, which takes a bias."""
    return bool(layer.cell.active_sites(layer.norm))


@torch.no_grad()
def _fill(plain: nn.Module, layer: SequenceLayer | OneStep, suffix: str, name: str) -> None:
    """Fill one layer in one direction with ``γ (W z - μ) / σ + b``, which is affine in z."""
    affine: dict[str, tuple[Tensor, Tensor]] = {}
    for site, spec in layer.cell.norms(layer.norm).items():
        where = f"{name}: norm.{site} must be None to be folded"
        if not isinstance(spec, BatchNorm):
            raise ValueError(f"{where}, got {spec}: its statistics are each row's own")
        if site in ("cell", "carry"):
            raise ValueError(f"{where}, got {getattr(spec, site)!r}: no weight multiplies c")
        population: Population = getattr(layer, f"population_{site}{suffix}")
        if not population.shared:
            raise ValueError(
                f"{name}: norm.population must be 'shared' to be folded, got "
                f"{spec.population!r}: the statistics of norm.{site} differ from step to step"
            )
        mean, var = (_wide(m[0]) for m in (population.mean, population.var))
        factor = scale_of(_wide(getattr(layer, f"gamma_{site}{suffix}")), var, spec.eps)
        affine[site] = factor, -mean * factor
    for kind, own in (("ih", "input"), ("hh", "recurrent")):
        weight = _wide(getattr(layer, f"weight_{kind}{suffix}"))
        bias = _wide(getattr(layer, f"bias_{kind}{suffix}")) if layer.bias else 0.0
        # the shift of the joint site is added to one of its two terms
        scale, shift = affine.get(own) or affine.get("joint") or (None, 0.0)
        if scale is not None:
            weight = scale.unsqueeze(1) * weight
            bias = bias + (shift if own in affine or kind == "ih" else 0.0)
        _put(plain, f"weight_{kind}{suffix}", weight)
        if plain.bias:
            _put(plain, f"bias_{kind}{suffix}", torch.as_tensor(bias))


def _wide(values: Tensor) -> Tensor:
    # Apple's GPUs have no float64
    return values.cpu().double()


@torch.no_grad()
def _put(plain: nn.Module, name: str, value: Tensor) -> None:
    getattr(plain, name).copy_(value)
