"""How the gradient fares on its way back through time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rnnorm.diagnostics.legend import legend_above
from rnnorm.layers.sequence import Sequence as NormalisedSequence

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
    r"""Norm of the total derivative of a loss with respect to the hidden state of every step.

    .. math::
        \|\partial \mathcal{L} / \partial h_t\|_2, \qquad
        \frac{\partial \mathcal{L}}{\partial h_{t-1}} =
        \frac{\partial \mathcal{L}}{\partial h_{t-1}}\Big|_{\mathrm{direct}} +
        \left(\frac{\partial h_t}{\partial h_{t-1}}\right)^{\!\top}
        \frac{\partial \mathcal{L}}{\partial h_t}

    over all rows and units (Cooijmans et al. 2016, fig. 1). ``h_t`` is the output of the topmost
    layer, so the path through an LSTM's carried ``c_t`` is not part of it. A copy of the model
    runs one step at a time, in the mode that the model is in: nothing of the model changes, nor
    does the generator of random numbers.

    Args:
        model: a recurrent layer, or a model that holds one: of this package or of ``torch.nn``.
        loss_fn: ``loss_fn(model(x))`` is the scalar loss.
        x: the model's input.
        layer: name of the layer in the model, needed where there are several.

    Returns:
        ``(T,)``, the first step first.

    Raises:
        ValueError: there is no such layer, several and none is named, or it is bidirectional or
            called with ``lengths``.
        TypeError: the layer is called with a PackedSequence.
    """
    model = copy.deepcopy(model).requires_grad_()
    recurrent = _find(model, layer)
    device = next(recurrent.parameters()).device
    # cuDNN has no backward in evaluation
    with (
        torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type),
        torch.backends.cudnn.flags(enabled=False),
        torch.enable_grad(),
        _step_by_step(recurrent) as hidden,
    ):
        loss_fn(model(x)).backward()  # type: ignore[no-untyped-call]
    norms = [h.new_zeros(()) if h.grad is None else h.grad[-1].norm() for h in hidden]
    return torch.stack(norms).detach()


def gradient_norms_by_gamma(
    model: nn.Module,
    loss_fn: Callable[[Any], Tensor],
    x: Any,
    gammas: Sequence[float] = _GAMMAS,
    *,
    layer: str | None = None,
) -> dict[float, Tensor]:
    """:func:`gradient_norms` with every scale γ of the model set to each of some values.

    In a tanh RNN that starts at W_hh = I the gradient vanishes with γ = 1 and survives with
    γ = 0.1 (Cooijmans et al. 2016, fig. 1). With an orthogonal W_hh and γ = 1 it explodes.

    Args:
        model: holds normalised layers.
        loss_fn: ``loss_fn(model(x))`` is the scalar loss.
        x: the model's input.
        gammas: the values.
        layer: name of the layer in the model, needed where there are several.

    Returns:
        ``(T,)`` for each value.

    Raises:
        ValueError: the model has no γ, or see :func:`gradient_norms`.
    """
    model = copy.deepcopy(model)
    scales = [p for n, p in model.named_parameters() if n.split(".")[-1].startswith("gamma_")]
    if not scales:
        raise ValueError("model has no normalised layer, so that there is no gamma to vary")
    norms = {}
    for gamma in gammas:
        for scale in scales:
            nn.init.constant_(scale, gamma)
        norms[gamma] = gradient_norms(model, loss_fn, x, layer=layer)
    return norms


def _find(model: nn.Module, name: str | None) -> nn.RNNBase:
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.RNNBase)}
    if name is None and len(layers) == 1:
        name = next(iter(layers))
    if name is None or name not in layers:
        raise ValueError(f"layer must be one of {list(layers)}, got {name!r}")
    if layers[name].bidirectional:
        raise ValueError(f"layer {name!r} must not be bidirectional: it has no single h_t")
    return layers[name]


@contextmanager
def _step_by_step(layer: nn.RNNBase) -> Iterator[list[Tensor]]:
    """Let a layer run one frame a call, and collect the state after each as it enters the next."""
    whole = layer.forward
    hidden: list[Tensor] = []

    def forward(input: Tensor, hx: Any = None, *, lengths: Any = None, step: Any = 0) -> Any:
        if lengths is not None:
            raise ValueError("lengths must be None: padded rows have no h_t of their own")
        if not isinstance(input, Tensor):
            raise TypeError(f"the layer's input must be a tensor, got {type(input).__name__}")
        time = 1 if layer.batch_first and input.dim() == 3 else 0
        normalised = isinstance(layer, NormalisedSequence)
        outputs = []
        for t, frame in enumerate(torch.split(input, 1, time)):
            _, hx = whole(frame, hx, **({"step": step + t} if normalised else {}))
            h = hx[0] if isinstance(hx, tuple) else hx
            h.retain_grad()
            hidden.append(h)
            # the same tensor that the next step reads: its gradient is the total one
            outputs.append(h[-1])
        return torch.stack(outputs, time), hx

    layer.forward = forward
    try:
        yield hidden
    finally:
        del layer.forward


def plot_gradient_norms(axes: Axes, norms: Mapping[Any, Tensor]) -> None:
    """Draw the norms of gradients against the time step, on a logarithmic scale.

    Args:
        axes: where to draw.
        norms: ``(T,)`` by what the legend calls it; a number is a γ.
    """
    for name, values in norms.items():
        label = f"γ = {name:g}" if isinstance(name, (int, float)) else name
        # no logarithm of what has vanished altogether
        axes.plot(values.where(values > 0, torch.nan).tolist(), linewidth=1.8, label=label)
    axes.set(xlabel="time step t", ylabel="‖∂loss/∂h_t‖", yscale="log")
    axes.margins(x=0)
    legend_above(axes)
