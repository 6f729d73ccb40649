"""Norms of the gradient on its way back through time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import State
from rnnorm.diagnostics.legend import legend_above
from rnnorm.kernels import reference
from rnnorm.kernels.call import LayerCall, LayerResult
from rnnorm.kernels.dispatch import Kernel, use_backend
from rnnorm.layers.gru import GRU
from rnnorm.layers.lstm import LSTM
from rnnorm.layers.rnn import RNN
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.layers.stateful import states_apart
from rnnorm.model.freeze import UNDO_FIRST, compute_parametrized
from rnnorm.model.synchronize import set_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAMMAS = (0.1, 0.3, 0.5, 0.7, 1.0)


def gradient_norms(
    model: nn.Module,
    loss_fn: Callable[[Any], Tensor],
    x: Any,
    *,
    layer: str | None = None,
) -> Tensor:
    r"""Compute the norm of a loss's total derivative by the hidden state of every step.

    .. math::
        \|\partial \mathcal{L} / \partial h_t\|_2, \qquad
        \frac{\partial \mathcal{L}}{\partial h_{t-1}} =
        \frac{\partial \mathcal{L}}{\partial h_{t-1}}\Big|_{\mathrm{direct}} +
        \left(\frac{\partial h_t}{\partial h_{t-1}}\right)^{\!\top}
        \frac{\partial \mathcal{L}}{\partial h_t}

    over all units and all rows that are active at the step (Cooijmans et al. 2016, fig. 1).
    ``h_t`` is the output of the topmost layer (for an HMLSTM the h of all its layers side by side,
    for a cell of your own its first state), so the path through an LSTM's carried ``c_t`` is not
    included. A copy of the model runs, in the mode of the model, on the reference kernel and in
    this process alone: neither the model nor the generator of random numbers changes.

    Args:
        model: a recurrent layer, or a model that holds one: of this package or of ``torch.nn``.
        loss_fn: ``loss_fn(model(x))`` is the scalar loss.
        x: the model's input.
        layer: name of the layer in the model, needed where there are several.

    Returns:
        ``(T,)``, the first step first. If the model calls the layer several times, those of all
        calls. If rows are cut at a ``reset``, as with batch norm, those of the pieces, each of
        which begins at step 0.

    Raises:
        ValueError: if there is no such layer, or several and ``layer`` is None, the layer is
            bidirectional, or one of ``torch.nn`` with hooks or a ``forward`` of its own, or
            ``model(x)`` does not call it.
        RuntimeError: if called in inference mode, as Lightning's validation is; or, under
            torch.distributed in training with ``horizon=None``, if ``x`` has more steps than the
            model has seen.
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "gradient_norms must not be called in inference mode; under no_grad it may be"
        )
    model = set_ranks(copy.deepcopy(model).requires_grad_(), None)
    model, recurrent = find_layer(model, layer)
    with (
        kept_random_state(recurrent),
        torch.enable_grad(),
        use_backend("reference"),
        states_apart(model.modules()),
        # cuDNN has no backward pass of torch.nn's layers in evaluation
        torch.backends.cudnn.flags(enabled=False),
    ):
        hidden = _record(recurrent)
        loss = loss_fn(model(x))
        if not hidden:
            raise ValueError(f"model(x) must call the layer, got none of layer={layer!r}")
        # not backward(), which would add to gradients of parameters in loss_fn
        grads = torch.autograd.grad(loss, hidden, allow_unused=True)
    pairs = zip(hidden, grads, strict=True)
    return torch.stack([h.new_zeros(()) if g is None else g.norm() for h, g in pairs])


def kept_random_state(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context after which random numbers go on as before it, on the model's device too."""
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices, device_type=device.type)


def gradient_norms_by_gamma(
    model: nn.Module,
    loss_fn: Callable[[Any], Tensor],
    x: Any,
    gammas: Collection[float] = _GAMMAS,
    *,
    layer: str | None = None,
) -> dict[float, Tensor]:
    """Compute :func:`gradient_norms` with every scale γ of the model set to each value.

    In a tanh RNN that starts at W_hh = I the gradient vanishes with γ = 1 and survives with
    γ = 0.1 (Cooijmans et al. 2016, fig. 1). With an orthogonal W_hh and γ = 1 it explodes.

    Args:
        model: holds normalised layers.
        loss_fn: ``loss_fn(model(x))`` is the scalar loss.
        x: the model's input.
        gammas: values of γ.
        layer: name of the layer in the model, needed where there are several.

    Returns:
        ``(T,)`` for each value.

    Raises:
        ValueError: if the model has no γ, or as :func:`gradient_norms`.
    """
    model = copy.deepcopy(model)
    # a parametrized γ is no parameter
    compute_parametrized(model)
    scales = [p for n, p in model.named_parameters() if n.split(".")[-1].startswith("gamma_")]
    if not scales:
        raise ValueError("model has no normalised layer, so there is no gamma to vary")
    norms = {}
    for gamma in gammas:
        for scale in scales:
            nn.init.constant_(scale, gamma)
        norms[gamma] = gradient_norms(model, loss_fn, x, layer=layer)
    return norms


def find_layer(model: nn.Module, name: str | None) -> tuple[nn.Module, SequenceLayer]:
    """Find a layer, replace it if it is torch.nn's, and return the model and the layer.

    Raises:
        ValueError: if there is no such layer, or several without ``name``, or it is bidirectional,
            or one of torch.nn that does more than torch.nn's.
    """
    # one layer may have several names
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = {n: m for n, m in modules.items() if isinstance(m, nn.RNNBase)}
    if name is None and len({*layers.values()}) == 1:
        name = next(iter(layers))
    if name is None or name not in layers:
        raise ValueError(f"layer must be one of {list(layers)}, got {name!r}")
    layer = layers[name]
    if layer.bidirectional:
        raise ValueError(f"layer {name!r} must not be bidirectional: it has no single h_t")
    if isinstance(layer, SequenceLayer):
        return model, layer
    ours = _as_ours(layer, name)
    for each in [n for n, m in layers.items() if m is layer]:
        if each:
            model.set_submodule(each, ours)
        else:
            model = ours
    return model, ours


def _as_ours(layer: nn.RNNBase, name: str) -> SequenceLayer:
    # a parametrized layer is of a subclass
    own = "forward" in vars(layer) or type(layer).forward not in _FORWARDS
    if own or layer._forward_pre_hooks or layer._forward_hooks:
        raise ValueError(
            f"layer {name!r} must compute what {layer.mode} of torch.nn does, got one with "
            + ("a forward of its own" if own else f"forward hooks: remove them, or {UNDO_FIRST}")
        )
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"]
    names += {"LSTM": ["proj_size"], "GRU": []}.get(layer.mode, ["nonlinearity"])
    kind = {"LSTM": LSTM, "GRU": GRU}.get(layer.mode, RNN)
    options = {name: getattr(layer, name) for name in names}
    like: Tensor = layer.weight_ih_l0  # type: ignore[assignment]
    # on meta, so that no random numbers are drawn
    ours: SequenceLayer = kind(**options, device="meta", dtype=like.dtype).to_empty(
        device=like.device
    )
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            # getattr computes a parametrized weight
            parameter.copy_(getattr(layer, name))
    return ours.train(layer.training)


_FORWARDS = (nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward)


def _record(layer: SequenceLayer) -> list[Tensor]:
    """Collect the states ``(rows, H)`` of the topmost layer, each as the next step reads it."""
    choose, hidden, count = layer._choose, [], len(layer._suffixes())
    # index of the layer that runs next
    index = 0

    def watch(state: State) -> None:
        if index == count - 1:
            # output and next step share this tensor, so its gradient is the total derivative, which
            # is wanted even if no parameter leads to the tensor
            hidden.append(state[0].requires_grad_())

    def record(call: LayerCall) -> LayerResult:
        nonlocal index
        result = reference.layer(call, watch=watch)
        index = (index + 1) % count
        return result

    def choose_recording(*asked: Any, **options: Any) -> tuple[Kernel, bool]:
        kernel, traceable = choose(*asked, **options)
        return replace(kernel, layer=record), traceable

    layer._choose = choose_recording  # type: ignore[method-assign]
    return hidden


def plot_gradient_norms(axes: Axes, norms: Mapping[Any, Tensor]) -> None:
    """Draw the norms of gradients against the time step, on a logarithmic scale.

    Args:
        axes: axes to draw on.
        norms: norms ``(T,)`` by label of the legend; a number is a value of γ.
    """
    labelled = {
        f"γ = {name:g}" if isinstance(name, (int, float)) else name: values
        for name, values in norms.items()
    }
    plot_by_step(axes, labelled, "‖∂loss/∂h_t‖")


def plot_by_step(axes: Axes, lines: Mapping[str, Tensor], ylabel: str) -> None:
    """Draw values ``(T,)`` by label against the time step, on a logarithmic scale."""
    for label, values in lines.items():
        # zero has no logarithm
        axes.plot(values.where(values > 0, torch.nan).tolist(), linewidth=1.8, label=label)
    axes.set(xlabel="time step t", ylabel=ylabel, yscale="log")
    axes.margins(x=0)
    legend_above(axes)
