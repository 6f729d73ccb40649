"""Exact population statistics over a data set, and how many steps of them to trust."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from numbers import Integral
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence

from rnnorm.layers.recurrence import Recurrence
from rnnorm.layers.sequence import Sequence
from rnnorm.layers.synchronize import sum_over_ranks
from rnnorm.norm.population import Population
from rnnorm.norm.resolved import Resolved, unresolved

Model = TypeVar("Model", bound=nn.Module)

_IN_LIGHTNING = "; for ExactStatistics it is a method of the model, statistics_step(batch)"


@torch.no_grad()
def update_bn(
    loader: Iterable[Any],
    model: Model,
    device: torch.device | str | int | None = None,
    *,
    forward: Callable[[Model, Any], Any] | None = None,
) -> None:
    """Re-estimates all population statistics as the exact average over ``loader``.

    It takes the place of :func:`torch.optim.swa_utils.update_bn`: ordinary batch norm layers are
    re-estimated as well. Dropout is off, ``initial_noise`` on; training modes and momenta are
    restored afterwards, and if anything fails the statistics too. Frozen parts
    (:func:`rnnorm.freeze`) stay as they are. A model without batch norm is left alone, with a
    warning. Under torch.distributed every rank calls it with a loader of its own, and all get the
    average over all of them; a synchronised layer (:func:`rnnorm.synchronize`) needs as many
    minibatches on each, and gets the average over its process group. A step seen by fewer rows
    than four times ``min_rows`` over the whole loader, and than the first step, is served by an
    earlier one.

    Args:
        loader: minibatches, as mixed as those of training, and better larger than smaller: the
            noise in statistics of few rows is in the average too. Of a pair the first element is
            the input, a PackedSequence is one input.
        model: holds the layers.
        device: where the inputs are moved to, if given.
        forward: ``forward(model, batch)`` in place of the call, where a model needs more than the
            first element; ``batch`` is then passed as it comes from the loader.

    Raises:
        ValueError: ``loader`` has no minibatch, or without ``forward`` one of more than two
            elements.
        TypeError: the input cannot be moved to ``device``: a dict, say, which needs ``forward``.
        RuntimeError: all that has statistics is frozen.
    """
    if isinstance(model, DistributedDataParallel):
        # its forward would copy the first rank's statistics to all
        model = model.module
    modes = {module: module.training for module in model.modules()}
    ordinary = [m for m in modes if isinstance(m, _BatchNorm) and m.track_running_stats]
    populations: list[Population | _BatchNorm] = [*unresolved(model), *ordinary]
    if not populations:
        for module in modes:
            if isinstance(module, Resolved):
                # which refuses, and says why
                module.reset_running_stats()
        warnings.warn("model has no batch norm layer: there is nothing to update", stacklevel=2)
        return
    layers = [m for m in modes if isinstance(m, Recurrence) and not m.frozen()]
    momenta = {module: module.momentum for module in populations}
    dropouts = {module: module.dropout for module in layers if isinstance(module, Sequence)}
    before = {module: _copy(module) for module in populations}
    try:
        model.eval()
        for module in (*populations, *layers):
            module.training = True
        for module in dropouts:
            module.dropout, module._draws = 0.0, False
        for module in populations:
            module.momentum = None
            module.reset_running_stats()
        batch = None
        for batch in loader:
            if forward is not None:
                forward(model, batch)
                continue
            if isinstance(batch, (list, tuple)) and not isinstance(batch, PackedSequence):
                if len(batch) > 2:
                    raise ValueError(
                        f"a minibatch is an input or a pair of it and a target, got {len(batch)} "
                        "elements: say with forward= what the model takes, as in "
                        f"forward=lambda model, batch: model(batch[0], batch[1]){_IN_LIGHTNING}"
                    )
                batch = batch[0]
            if device is not None and not hasattr(batch, "to"):
                raise TypeError(
                    f"a minibatch's input must have a method to(device), got a "
                    f"{type(batch).__name__}: say with forward= what the model takes{_IN_LIGHTNING}"
                )
            model(batch if device is None else batch.to(device))
        if batch is None:
            raise ValueError("loader has no minibatch to take statistics of")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # those of a synchronised layer are its group's already
            one = {m for layer in layers if layer.ranks is not None for m in layer.children()}
            for module in populations:
                if module not in one:
                    sum_over_ranks(module)
        for module in populations:
            if isinstance(module, Population):
                module.forget_rare_steps()
    except BaseException:
        for module, buffers in before.items():
            _put(module, buffers)
        raise
    finally:
        for member, training in modes.items():
            member.training = training
        for module, momentum in momenta.items():
            module.momentum = momentum
        for module, rate in dropouts.items():
            module.dropout, module._draws = rate, True


# buffers made in inference mode could not be updated outside it
@torch.inference_mode(False)
def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}


@torch.inference_mode(False)
def _put(module: nn.Module, buffers: dict[str, Tensor], rows: int | None = None) -> None:
    for name, buffer in buffers.items():
        setattr(module, name, buffer if rows is None else buffer[:rows].clone())


def select_horizon(
    model: nn.Module,
    evaluate: Callable[[Any], float],
    horizons: Collection[int] | None = None,
) -> int:
    """Chooses by validation how many steps' statistics to trust.

    Steps beyond the chosen horizon are served by its last one; their own statistics are dropped.
    Choose after training: more training takes statistics of those steps again.

    Args:
        model: its layers have population statistics; frozen ones keep theirs.
        evaluate: ``evaluate(model) -> float``, lower is better; called with the model in
            evaluation mode.
        horizons: what to try, each at least 1; by default the powers of two below the longest
            population, and that.

    Returns:
        the best horizon, which is also set; the smallest of equals.

    Raises:
        ValueError: the model has no population statistics per step, a horizon is below 1 or
            there is none, or ``evaluate`` never returned a number.
    """
    populations = [population for population in unresolved(model) if not population.shared]
    if not populations:
        raise ValueError(
            "model has no batch-normalised layer with population='per_step', frozen ones apart"
        )
    longest = max(len(population) for population in populations)
    if horizons is None:
        powers = [2**k for k in range(longest.bit_length())]
        horizons = [power for power in powers if power < longest] + [longest]
    if not len(horizons) or not all(isinstance(h, Integral) and int(h) >= 1 for h in horizons):
        raise ValueError(f"horizons must be ints of at least 1, got {horizons!r}")
    whole = {population: _copy(population) for population in populations}

    def trust(horizon: int) -> None:
        for population, buffers in whole.items():
            _put(population, buffers, horizon)

    modes = {module: module.training for module in model.modules()}
    scores: dict[int, float] = {}
    best = longest
    try:
        model.eval()
        for horizon in sorted({int(h) for h in horizons}):
            trust(horizon)
            scores[horizon] = float(evaluate(model))
        numbers = {horizon: score for horizon, score in scores.items() if score == score}
        if not numbers:
            raise ValueError(f"evaluate returned no number at any horizon: {scores}")
        best = min(numbers, key=lambda horizon: (numbers[horizon], horizon))
    finally:
        trust(best)
        for module, training in modes.items():
            module.training = training
    return best
