"""The figures of a report, each drawn from runs by :mod:`rnnorm.diagnostics`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from rnnorm import diagnostics
from rnnorm.experiments.pictures import Look, draw_curves, escape_dollars, in_lines
from rnnorm.experiments.reporting.pictures import Picture, cycle, draw, pictures_or_reason, shades
from rnnorm.experiments.reporting.trained_run import TrainedRun
from rnnorm.experiments.trained.curve import Curve, training_scores_kept
from rnnorm.experiments.trained.test import SeveralRows
from rnnorm.experiments.training.score import Score, score_of
from rnnorm.layers.normalised_module import temporarily

_LENGTHS = (50, 100, 200, 500, 1000)
_SYMBOLS = 20_000
# rows of the first input's influence, and most inputs that it is computed of
_ROWS, _INPUTS = 4, 256
_INK = "#222222"


def curve_pictures(
    curves: Sequence[Curve], score: Score, looks: Mapping[str, Look]
) -> list[Picture]:
    """Draw validation scores against steps and against seconds."""
    several = len({c.seed for c in curves}) > 1
    notes = ["Mean over the seeds, band from lowest to highest."] if several else []
    if training_scores_kept(curves):
        notes.append("Dotted: the score in training, over the minibatches of each epoch.")
    caption = " ".join(notes)

    def panel(against: str) -> Picture:
        label = f"validation {score.label}"
        return draw(
            f"Validation {score.label}, against {against}",
            caption,
            lambda axes: draw_curves(axes, curves, against, label, looks),
            legend=True,
        )

    return [panel("steps"), panel("seconds")]


def statistics_pictures(run: TrainedRun, look: Look) -> list[Picture]:
    """Draw population mean and variance of some first-layer units against the time step."""
    with pictures_or_reason(f"Population statistics of {run.name}") as pictures:
        sites = diagnostics.population_statistics(run.model)
        first = {name: moments for name, moments in sites.items() if "_l0" in name}
        for site, moments in first.items():
            for name, values in zip(("mean", "variance"), moments, strict=True):
                label = f"population {name}"
                plot = partial(diagnostics.plot_statistic, values=values, units=8, label=label)
                title = f"{run.name}: {label} of {site}"
                caption = f"Eight units, {run.weights}."
                pictures.append(draw(title, caption, plot, shades(look.colour, 8)))
    return pictures


def gradient_pictures(runs: Sequence[TrainedRun], looks: Mapping[str, Look]) -> list[Picture]:
    """Draw gradient norms of the trained models, and of a tanh RNN for several γ."""
    norms, pictures = {}, []
    for run in runs:
        with pictures_or_reason(f"Gradient norms of {run.name}") as left_out:
            batch, loss = _batch(run), _Loss(run)
            norms[run.name] = diagnostics.gradient_norms(loss, _itself, batch, layer=_first(loss))
        pictures += left_out
    if norms:
        pictures.append(
            draw(
                "Gradient norms of the trained models",
                "Norm of ∂loss/∂h_t over the rows and units of one training minibatch, at the best "
                "epoch, in the first recurrent layer that the model names.",
                lambda axes: diagnostics.plot_gradient_norms(axes, _legible(norms)),
                cycle(looks[name] for name in norms),
            )
        )
    with pictures_or_reason("Gradient norms of a tanh RNN for several γ") as sweep:
        run = next((run for run in runs if run.batch is not None), runs[0])
        rnn = _Loss(run, _tanh_network(run))
        found = diagnostics.gradient_norms_by_gamma(rnn, _itself, _batch(run), layer=_first(rnn))
        sweep.append(
            draw(
                "Gradient norms of a tanh RNN for several γ",
                f"A batch-normalised tanh RNN as it starts, on a training minibatch of {run.name}: "
                "W_hh = I, noise of 0.1 on h_0 (Cooijmans et al. 2016, fig. 1).",
                lambda axes: diagnostics.plot_gradient_norms(axes, found),
                shades(_INK, len(found)),
            )
        )
    return [*pictures, *sweep]


def influence_pictures(runs: Sequence[TrainedRun], looks: Mapping[str, Look]) -> list[Picture]:
    """Draw how far the first input is felt in the outputs of the trained models."""
    felt, pictures = {}, []
    for run in runs:
        with pictures_or_reason(f"Influence of the first input in {run.name}") as left_out:
            felt[run.name] = diagnostics.first_input_influence(*_layer_and_input(run))
        pictures += left_out
    if felt:
        pictures.append(
            draw(
                "How far the first input is felt",
                f"Norm of ∂h_t/∂x_1 over units and inputs against t, of the {_ROWS} longest rows "
                "of a training minibatch, in evaluation, in the first recurrent layer that the "
                "model names (Graves 2012, fig. 4.1 and 4.4).",
                lambda axes: diagnostics.plot_first_input_influence(axes, _legible(felt)),
                cycle(looks[name] for name in felt),
            )
        )
    return pictures


def saturation_pictures(runs: Sequence[TrainedRun], looks: Mapping[str, Look]) -> list[Picture]:
    """Draw E[tanh'] against the spread of the input, with the position of each model."""
    measured, pictures = {}, []
    for run in runs:
        with pictures_or_reason(f"Inputs of tanh in {run.name}") as left_out:
            measured[run.name] = diagnostics.tanh_inputs(_Loss(run), _batch(run))
        pictures += left_out
    picture = draw(
        "E[tanh'] against the spread of the input",
        "The curve is that of Gaussian inputs of mean 0, with its interquartile range. A point is "
        "a call of tanh in a trained model, over rows and units: the candidate and the output of "
        "every step of an LSTM.",
        lambda axes: diagnostics.plot_tanh_derivative(axes, _legible(measured)),
        {"color": [looks[name].colour for name in measured] or [_INK]},
    )
    return [picture, *pictures]


def length_pictures(run: TrainedRun, look: Look) -> list[Picture]:
    """Draw the test score of a text against the length of the sequences."""
    title = f"{run.name}: score against test length"
    windows: Any = getattr(run.data, "test_windows", None)
    if windows is None:
        return []
    with pictures_or_reason(title) as pictures:
        _batch(run)
        score, symbols = score_of(run.model), len(windows(1).symbols)
        # a length needs two windows in the text, since batch statistics need two rows
        lengths = [length for length in _LENGTHS if 2 * length < symbols]
        if not lengths:
            raise ValueError(f"the test text has {symbols} symbols")
        scores = diagnostics.score_by_length(
            run.model, lambda model, length: _test_score(model, windows(length), length), lengths
        )
        named = {f"{name} statistics": values for name, values in scores.items()}
        if len(named) == 1:
            named = {in_lines(run.name): scores["population"]}
        pictures.append(
            draw(
                title,
                f"About {_SYMBOLS} symbols of the test text in windows that each start from the "
                f"initial state, {run.weights}.",
                lambda axes: diagnostics.plot_score_by_length(
                    axes, lengths, named, escape_dollars(f"test {score.label}")
                ),
                cycle(Look(look.colour, dashes) for dashes in ("-", "--")),
            )
        )
    return pictures


def spectral_pictures(run: TrainedRun, look: Look) -> list[Picture]:
    """Draw the recurrent weights' spectral norms beside the bound of vanishing gradients."""
    title = f"{run.name}: spectral norm of W_hh"
    with pictures_or_reason(title) as pictures:
        norms = diagnostics.spectral_norms(run.model)
        pictures.append(
            draw(
                title,
                "Of each gate, alone and as evaluation scales it. Below 1/α (α = 1 for tanh, 1/4 "
                f"for the logistic) the gradient through that gate must vanish; {run.weights}.",
                lambda axes: diagnostics.plot_spectral_norms(axes, norms),
                {"color": [look.colour]},
            )
        )
    return pictures


def example_pictures(run: TrainedRun) -> list[Picture]:
    """Draw what the model computes for a few validation examples, if its task shows any."""
    examples: Any = getattr(run.model, "examples", None)
    if examples is None:
        return []
    with pictures_or_reason(f"Examples of {run.name}") as pictures:
        _batch(run)
        with temporarily(run.model.modules(), training=False), torch.no_grad():
            for title, caption, plot in examples(run.data):
                pictures.append(
                    draw(f"{run.name}: {title}", f"{caption} Weights of {run.weights}.", plot)
                )
    return pictures


class _Loss(nn.Module):
    """A module whose output is a task's training loss, in training mode."""

    def __init__(self, run: TrainedRun, model: LightningModule | None = None) -> None:
        super().__init__()
        self.model = (model or run.model).train()

    def forward(self, batch: Any) -> Tensor:
        with warnings.catch_warnings():
            # self.log warns, since no trainer is attached
            warnings.filterwarnings("ignore", ".*self.log.*")
            return self.model.training_step(batch, 0)  # type: ignore[return-value]


def _first(model: nn.Module) -> str:
    """Return the name of a model's first recurrent layer."""
    names: list[str] = [
        name for name, part in model.named_modules() if isinstance(part, nn.RNNBase)
    ]
    return names[0]


def _layer_and_input(run: TrainedRun) -> tuple[nn.RNNBase, Tensor]:
    """Return a model's first recurrent layer and what the layer reads, rows of one length.

    Raises:
        ValueError: if the layer has two directions, or so many inputs that it would take minutes.
    """
    # a copy, since the pass may carry states to the next one
    loss = copy.deepcopy(_Loss(run)).eval()
    layer = loss.get_submodule(_first(loss))
    assert isinstance(layer, nn.RNNBase)
    if layer.bidirectional:
        raise ValueError("the first layer reads in both directions")
    if layer.input_size > _INPUTS:
        raise ValueError(f"it would take minutes: the first layer has more than {_INPUTS} inputs")
    read: list[tuple[Tensor, Tensor | None]] = []
    layer.register_forward_pre_hook(
        lambda _, args, named: read.append((args[0], named.get("lengths"))), with_kwargs=True
    )
    with torch.no_grad():
        loss(_batch(run))
    x, lengths = read[0]
    if lengths is None:
        return layer, x[:, :_ROWS]
    longest = lengths.argsort(descending=True, stable=True)[:_ROWS]
    # a step's output does not depend on later inputs
    return layer, x[: int(lengths[longest].min()), longest]


def _itself(loss: Tensor) -> Tensor:
    return loss


def _batch(run: TrainedRun) -> Any:
    if run.batch is None:
        raise ValueError(run.why)
    return run.batch


def _tanh_network(run: TrainedRun) -> LightningModule:
    """Make the task's model with a batch-normalised tanh RNN instead of its layers."""
    # hparams also hold what the model's class gives to the class that it extends
    given = run.arguments
    changes: dict[str, Any] = {
        "cell": "RNN",
        "norm": "batch",
        "norm_options": None,
        "cell_options": None,
        "recurrent_dropout": None,
        "recurrent_dropout_options": None,
        "weight_norm": False,
        "norm_stabilizer": 0.0,
        "num_layers": 1,
        "init": "cooijmans2016",
        "forget_bias": None,
        "initial_noise": 0.1,
    }
    if not {"cell", "norm"} <= given.keys():
        raise ValueError(f"{type(run.model).__name__} has no cell that could be another")
    return type(run.model)(**given | {k: v for k, v in changes.items() if k in given})


def _test_score(model: Any, windows: Iterable[Any], length: int) -> float:
    """Compute the score of the first symbols of a test text."""
    batches = SeveralRows(windows)
    rows = max(2, _SYMBOLS // length)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*self.log.*")
        model.test_likelihood.reset()
        for batch in batches:
            batch = batch._replace(x=batch.x[:, :rows], y=batch.y[:, :rows])
            model.test_step(batch, 0)
            rows -= batch.x.size(1)
            if rows < 2:
                break
    return float(model.test_likelihood.compute())


def _legible(named: Mapping[str, Any]) -> dict[str, Any]:
    return {in_lines(name): value for name, value in named.items()}
