"""Spectral norms of recurrent weights, beside the bound below which gradients must vanish."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rnnorm.diagnostics.legend import legend_above
from rnnorm.layers.recurrent import Recurrent
from rnnorm.norm.moments import scale_of
from rnnorm.norm.population import Population
from rnnorm.norm.spec import Norm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# torch's order of the gates, and the largest slope of each one's nonlinearity
_GATES = {
    1: {"": 1.0},
    3: {"r": 0.25, "z": 0.25, "n": 1.0},
    4: {"i": 0.25, "f": 0.25, "g": 1.0, "o": 0.25},
}


class SpectralNorm(NamedTuple):
    """Spectral norms of the recurrent weights of one gate.

    Attributes:
        weight: norm of the weights alone.
        in_evaluation: norm of ``diag(γ / sqrt(var + eps)) W_hh``, the map that evaluation applies,
            with the population's last step; equals ``weight`` if nothing is normalised, and is NaN
            under layer norm, whose scale differs from row to row.
        bound: ``1 / α``, α the largest slope of the gate's nonlinearity: 1 for tanh and ReLU, 1/4
            for the logistic function.
    """

    weight: float
    in_evaluation: float
    bound: float


@torch.no_grad()
def spectral_norms(model: nn.Module) -> dict[str, SpectralNorm]:
    """Compute the spectral norm of every gate's recurrent weights.

    In a plain RNN ``‖W_hh‖_2 < 1/α`` suffices for gradients to vanish exponentially, and a
    gradient that explodes implies the contrary (Pascanu et al. 2013). In an LSTM or GRU this holds
    for the path through that gate; the gradient can also pass through the carried state. Layers of
    other cells (:class:`rnnorm.Recurrent`, ClockworkRNN, HMLSTM) are left out.

    Args:
        model: holds recurrent layers or cells, of this package or of ``torch.nn``.

    Returns:
        norms by the name of the weight and of the gate, such as ``"rnn.weight_hh_l0 f"``.

    Raises:
        ValueError: if the model has no such layer.
    """
    norms = {
        name: norm
        for path, module in model.named_modules()
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)) and not isinstance(module, Recurrent)
        for name, norm in _of_layer(f"{path}." if path else "", module)
    }
    if not norms:
        raise ValueError("model has no RNN, LSTM or GRU")
    return norms


def _of_layer(path: str, layer: nn.RNNBase | nn.RNNCellBase) -> Iterator[tuple[str, SpectralNorm]]:
    names = layer._flat_weights_names if isinstance(layer, nn.RNNBase) else ["weight_hh"]
    for name in names:
        if not name.startswith("weight_hh"):
            continue
        suffix = name.removeprefix("weight_hh")
        weight: Tensor = getattr(layer, name)
        projection: Tensor | None = getattr(layer, f"weight_hr{suffix}", None)
        if projection is not None:
            weight = weight @ projection
        evaluated = _scale(layer, suffix, weight).unsqueeze(1) * weight
        gates = _GATES[weight.size(0) // layer.hidden_size]
        blocks = (torch.split(w, layer.hidden_size) for w in (weight, evaluated))
        for (gate, slope), plain, scaled in zip(gates.items(), *blocks, strict=True):
            key = f"{path}{name} {gate}".rstrip()
            yield key, SpectralNorm(_largest(plain), _largest(scaled), bound=1 / slope)


def _largest(weight: Tensor) -> float:
    """Return the largest singular value, or NaN if a weight is not finite."""
    if not weight.isfinite().all():
        return math.nan
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    return float(torch.linalg.matrix_norm(wide, 2))


def _scale(layer: nn.Module, suffix: str, weight: Tensor) -> Tensor:
    """Return the factors ``(F,)`` of the recurrent product's rows in evaluation."""
    norm: Norm | None = getattr(layer, "norm", None)
    scales = []
    # the candidate has sites of its own in a GRU with reset_after=False
    for site in ("recurrent", "recurrent_candidate", "joint", "joint_candidate"):
        population = getattr(layer, f"population_{site}{suffix}", None)
        own = norm.of(site) if isinstance(norm, Norm) else None
        if own is not None and not own.takes_statistics:
            # a factor for each row of the minibatch
            return weight.new_full((len(weight),), torch.nan)
        if own is not None and isinstance(population, Population):
            _, var = population.at(torch.tensor([len(population) - 1], device=weight.device))
            gamma: Tensor = getattr(layer, f"gamma_{site}{suffix}")
            scales.append(scale_of(gamma, var[0], own.eps).to(weight.dtype))
    return torch.cat(scales) if scales else weight.new_ones(len(weight))


def plot_spectral_norms(axes: Axes, norms: Mapping[str, SpectralNorm]) -> None:
    """Draw spectral norms as bars, each with the bound below which the gradient vanishes.

    Args:
        axes: axes to draw on.
        norms: result of :func:`spectral_norms`.
    """
    positions = range(len(norms))
    hollow: dict[str, Any] = {"fill": False, "edgecolor": "#9a9a9a", "linewidth": 1.5}
    for shift, field, label, look in (
        (-0.2, "weight", "W_hh", hollow),
        (0.2, "in_evaluation", "in evaluation", {}),
    ):
        heights = [getattr(norm, field) for norm in norms.values()]
        axes.bar([p + shift for p in positions], heights, 0.38, label=label, **look)
    axes.hlines(
        [norm.bound for norm in norms.values()],
        [p - 0.45 for p in positions],
        [p + 0.45 for p in positions],
        color="#222222",
        linewidth=2,
        label="1/α",
    )
    axes.set_xticks(list(positions), [name.replace("weight_hh_", "") for name in norms])
    axes.set(ylabel="spectral norm", ylim=(0, None))
    if len(norms) > 4:
        axes.tick_params("x", rotation=60)
    axes.tick_params("x", labelsize="small")
    legend_above(axes)
