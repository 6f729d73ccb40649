"""The share of the gradient that passes through tanh, by the spread of its input."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rnnorm.diagnostics.gradient_flow import kept_random_state
from rnnorm.kernels.dispatch import use_backend
from rnnorm.layers.stateful import states_apart
from rnnorm.model.synchronize import set_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def tanh_derivative(spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute mean and quartiles of ``tanh'(x)`` for Gaussian x of mean 0.

    (Cooijmans et al. 2016, fig. 1.)

    Args:
        spread: standard deviations of x, of any shape; integers give results of torch's default
            dtype.

    Returns:
        the mean, the lower and the upper quartile, with the shape of ``spread``.
    """
    # quadrature at midpoints of equally probable intervals, without random numbers
    middles = (torch.arange(2000, dtype=torch.float64, device="cpu") + 0.5) / 2000
    points = torch.special.ndtri(middles)
    values = 1 - torch.tanh(spread.cpu().double().unsqueeze(-1) * points) ** 2
    low, high = values.quantile(values.new_tensor([0.25, 0.75]), -1)
    dtype = spread.dtype if spread.is_floating_point() else torch.get_default_dtype()
    mean, low, high = (v.to(spread.device, dtype) for v in (values.mean(-1), low, high))
    return mean, low, high


def tanh_inputs(model: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
    """Measure the spread of tanh's inputs in a model, and the gradient that passes.

    A copy of the model runs, in the mode of the model, on the reference kernel and in this process
    alone: neither the model nor the generator of random numbers changes.

    Args:
        model: calls tanh: an RNN, LSTM or GRU of this package (also with ``norm=None``) does.
        x: the model's input.

    Returns:
        standard deviation of the input and mean of ``tanh'``, over rows and units, ``(calls,)``
        each, in the order of the calls: for an LSTM the candidate and the output of every step.

    Raises:
        ValueError: if the model never calls tanh.
        RuntimeError: if, under torch.distributed in training with ``horizon=None``, ``x`` has more
            steps than the model has seen.
    """
    model, watch = set_ranks(copy.deepcopy(model), None), _Watch()
    with (
        kept_random_state(model),
        torch.no_grad(),
        use_backend("reference"),
        states_apart(model.modules()),
        watch,
    ):
        model(x)
    if not watch.spread:
        raise ValueError(
            "model never calls tanh, or only inside the operators of torch.nn's layers"
        )
    return torch.stack(watch.spread), torch.stack(watch.derivative)


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.spread: list[Tensor] = []
        self.derivative: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.tanh, Tensor.tanh):
            self.spread.append(args[0].std(correction=0))
            self.derivative.append((1 - result**2).mean())
        return result


def plot_tanh_derivative(
    axes: Axes,
    measured: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    most: float = 2.0,
) -> None:
    """Draw E[tanh'] with its interquartile range against the input's standard deviation.

    Args:
        axes: axes to draw on.
        measured: results of :func:`tanh_inputs` by the name of the model; drawn as points beside
            the curve of Gaussian inputs of mean 0.
        most: largest standard deviation, unless a measured one is larger.
    """
    points = measured or {}
    most = max([most, *(float(spread.max()) for spread, _ in points.values())])
    spread = torch.linspace(0, most, 200)
    mean, low, high = (v.tolist() for v in tanh_derivative(spread))
    axes.plot(spread.tolist(), mean, color="#222222", label="Gaussian input, mean")
    axes.fill_between(
        spread.tolist(), low, high, color="#222222", alpha=0.12, linewidth=0, label="its quartiles"
    )
    for name, (x, y) in points.items():
        axes.plot(x.tolist(), y.tolist(), ".", markersize=3, alpha=0.6, label=name)
    axes.set(xlabel="standard deviation of x", ylabel="E[tanh'(x)]", ylim=(0, 1.02))
    axes.margins(x=0)
    axes.legend(frameon=False, markerscale=4)
