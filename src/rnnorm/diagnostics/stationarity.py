"""Population statistics against the time step, to see whether they settle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rnnorm.norm.population import Population

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def population_statistics(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Return population mean and variance of every site that has them for each time step.

    In Cooijmans et al. 2016 they converge to a stationary distribution within some tens of steps,
    which is why the last step may serve all later ones.

    Args:
        model: holds batch-normalised layers that have taken statistics.

    Returns:
        mean and unbiased variance, ``(steps, features)`` each, up to the last step that has a
        statistic, by the path of the layer and the name of the site, such as ``"recurrent_l0"``.
        A step without a statistic has the one that evaluation uses: of the last step with one.

    Raises:
        ValueError: if the model has no statistics per time step.
    """
    statistics = {}
    for name, module in model.named_modules():
        if isinstance(module, Population) and not module.shared:
            counted = module.num_batches_tracked.nonzero()
            if len(counted):
                steps = torch.arange(int(counted.max()) + 1, device=counted.device)
                # the name of a layer may begin alike
                path, _, site = name.rpartition("population_")
                statistics[path + site] = module.at(steps)
    if not statistics:
        raise ValueError("model has taken no population statistics per time step")
    return statistics


def plot_statistic(
    axes: Axes, values: Tensor, units: Sequence[int] | int = 10, label: str = "population mean"
) -> None:
    """Draw a statistic of some units against the time step, one line each.

    Args:
        axes: axes to draw on.
        values: statistic ``(steps, features)``.
        units: indices of features, or a number of evenly spaced ones.
        label: label of the vertical axis.

    Raises:
        IndexError: if there is no such feature.
    """
    if isinstance(units, int):
        count = min(units, values.size(1))
        units = [i * values.size(1) // count for i in range(count)]
    for unit in units:
        axes.plot(values[:, unit].tolist(), linewidth=1)
    axes.set(xlabel="time step", ylabel=label)
    axes.margins(x=0)
