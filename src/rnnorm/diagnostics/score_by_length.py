"""A model's score on sequences longer than in training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from rnnorm.diagnostics.batch_statistics import batch_normalised, batch_statistics
from rnnorm.diagnostics.legend import legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Model = TypeVar("Model", bound=nn.Module)


def score_by_length(
    model: Model, score: Callable[[Model, int], float], lengths: Sequence[int]
) -> dict[str, Tensor]:
    """Score a model on sequences of several lengths, with population and batch statistics.

    Cooijmans et al. 2016 evaluate Penn Treebank characters at lengths of 50 to 1000, with
    population statistics, of which the last step serves all later ones, and with the minibatch's
    own statistics (:func:`batch_statistics`).

    Args:
        model: model to evaluate; a copy runs.
        score: ``score(model, length) -> float`` over sequences of that length.
        lengths: lengths in time steps.

    Returns:
        scores ``(len(lengths),)`` for ``"population"`` statistics, and for ``"batch"`` statistics
        if the model has batch-normalised recurrent layers.
    """
    model = copy.deepcopy(model).eval()

    def scores() -> Tensor:
        return torch.tensor([float(score(model, length)) for length in lengths])

    with torch.no_grad():
        found = {"population": scores()}
        if batch_normalised(model):
            with batch_statistics(model):
                found["batch"] = scores()
    return found


def plot_score_by_length(
    axes: Axes, lengths: Sequence[int], scores: Mapping[str, Tensor], label: str = "score"
) -> None:
    """Draw scores against the length of the sequences.

    Args:
        axes: axes to draw on.
        lengths: lengths in time steps.
        scores: scores ``(len(lengths),)`` by label of the legend.
        label: label of the vertical axis.
    """
    for name, values in scores.items():
        axes.plot(lengths, values.tolist(), marker="o", markersize=4, label=name)
    axes.set(xlabel="length of the sequences, steps", ylabel=label, xscale="log")
    axes.set_xticks(list(lengths), [str(length) for length in lengths], minor=False)
    axes.minorticks_off()
    legend_above(axes)
