"""How well a model does on sequences longer than those it was trained on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from rnnorm.layers.sequence import Sequence as NormalisedSequence
from rnnorm.layers.step import Step
from rnnorm.norm.population import Population

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Model = TypeVar("Model", bound=nn.Module)


def with_batch_statistics(model: Model) -> Model:
    """A copy in evaluation whose recurrent layers use the statistics of the minibatch.

    Dropout and initial noise are off. What a row gives then depends on the rows beside it.

    Args:
        model: holds batch-normalised layers of this package; it is not changed.
    """
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, (NormalisedSequence, Step)):
            module.training = True
        if isinstance(module, NormalisedSequence):
            module.dropout = module.initial_noise = 0.0
    return model


def score_by_length(
    model: Model, score: Callable[[Model, int], float], lengths: Sequence[int]
) -> dict[str, Tensor]:
    """A model's score on sequences of several lengths, with both kinds of statistics.

    Cooijmans et al. 2016 evaluate Penn Treebank characters at lengths of 50 to 1000, with
    population statistics, of which the last step's serve all later ones, and with those of the
    minibatch.

    Args:
        model: is not changed; copies are evaluated.
        score: ``score(model, length) -> float`` over sequences of that length.
        lengths: in time steps.

    Returns:
        ``(len(lengths),)`` for ``"population"`` statistics; for ``"batch"`` statistics too, where
        the model has such layers.
    """
    models = {"population": copy.deepcopy(model).eval()}
    if any(isinstance(module, Population) for module in model.modules()):
        models["batch"] = with_batch_statistics(model)
    with torch.no_grad():
        return {
            name: torch.tensor([float(score(m, length)) for length in lengths])
            for name, m in models.items()
        }


def plot_score_by_length(
    axes: Axes, lengths: Sequence[int], scores: Mapping[str, Tensor], label: str = "score"
) -> None:
    """Draw scores against the length of the sequences.

    Args:
        axes: where to draw.
        lengths: in time steps.
        scores: ``(len(lengths),)`` by what the legend calls them.
        label: of the vertical axis.
    """
    for name, values in scores.items():
        axes.plot(lengths, values.tolist(), marker="o", markersize=4, label=name)
    axes.set(xlabel="length of the sequences, steps", ylabel=label, xscale="log")
    axes.set_xticks(list(lengths), [str(length) for length in lengths], minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False)
