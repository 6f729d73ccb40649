"""The choice of a horizon of population statistics by validation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from numbers import Integral
from typing import Any

from torch import nn

from rnnorm.layers.normalised_module import temporarily
from rnnorm.layers.stateful import states_apart
from rnnorm.model.update_bn import copy_buffers, put_buffers
from rnnorm.norm.frozen_population import unfrozen_populations


def select_horizon(
    model: nn.Module,
    evaluate: Callable[[Any], float],
    horizons: Collection[int] | None = None,
) -> int:
    """Choose by validation how many steps keep their own statistics.

    Steps beyond the chosen horizon use the statistics of its last step, and lose their own. Choose
    after training: further training takes statistics of those steps again.

    Args:
        model: model whose layers have population statistics; frozen layers are left as they are.
        evaluate: ``evaluate(model) -> float``, lower is better; called with the model in
            evaluation mode; a :class:`Stateful` begins anew each time.
        horizons: the horizons to try, each at least 1; by default the powers of two below the
            length of the longest population, and that length.

    Returns:
        the best horizon, the smallest of equals; the model then has it. A horizon beyond the
        longest population counts as its length.

    Raises:
        ValueError: if the model has no population statistics per step, a horizon is below 1 or
            none is given, or ``evaluate`` returned only NaN.
        TypeError: if ``horizons`` are not ints, or ``evaluate`` did not return a number.
    """
    populations = [
        population for population in unfrozen_populations(model) if not population.shared
    ]
    if not populations:
        raise ValueError(
            "model has no batch-normalised layer with population='per_step', frozen ones apart"
        )
    longest = max(len(population) for population in populations)
    if horizons is None:
        powers = [2**k for k in range(longest.bit_length())]
        horizons = [power for power in powers if power < longest] + [longest]
    if not isinstance(horizons, Collection) or any(
        not isinstance(h, Integral) or isinstance(h, bool) for h in horizons
    ):
        raise TypeError(f"horizons must be ints, got {horizons!r}")
    if not len(horizons) or any(int(h) < 1 for h in horizons):
        raise ValueError(f"horizons must be ints of at least 1, got {horizons!r}")
    whole = {population: copy_buffers(population) for population in populations}

    def trust(horizon: int) -> None:
        for population, buffers in whole.items():
            put_buffers(population, buffers, horizon)

    scores: dict[int, float] = {}
    best = longest
    try:
        with temporarily(model.modules(), training=False):
            for horizon in sorted({min(int(h), longest) for h in horizons}):
                trust(horizon)
                with states_apart(model.modules()):
                    score = evaluate(model)
                if not hasattr(score, "__float__"):
                    raise TypeError(f"evaluate must return a number, got {score!r}")
                scores[horizon] = float(score)
        numbers = {horizon: score for horizon, score in scores.items() if score == score}
        if not numbers:
            raise ValueError(f"evaluate returned no number at any horizon: {scores}")
        best = min(numbers, key=lambda horizon: (numbers[horizon], horizon))
    finally:
        trust(best)
    return best
