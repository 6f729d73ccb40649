"""The reference kernel with statistics over the rows of several processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rnnorm.cells.cell import Weights
from rnnorm.kernels import reference
from rnnorm.kernels.call import LayerCall, LayerResult
from rnnorm.norm.merged_moments import MergedSite
from rnnorm.norm.moments import Moments


def layer(call: LayerCall) -> LayerResult:
    """Run ``reference.layer`` on this rank's rows, with moments of the rows of all ranks.

    Autograd sees one function. With a node for each step, a rank would wait forever if the loss
    of another rank did not depend on that step's output.
    """
    assert call.rows is not None
    make_site = partial(MergedSite, rows=call.rows)
    state, weights, gamma, beta = call.state, call.weights, call.gamma, call.beta
    taken: dict[str, Moments] = {}
    plain = weights[:-1]

    def run(leaves: list[Tensor]) -> tuple[Tensor, ...]:
        left = iter(leaves)
        scales = {site: next(left) for site in gamma}
        frames, *begin = (next(left) for _ in range(1 + len(state)))
        torch_weights = [None if weight is None else next(left) for weight in plain]
        own = {name: next(left) for name in weights.own}
        shifts = {site: next(left) for site in beta}
        own_call = call._replace(
            x=frames,
            state=tuple(begin),
            weights=Weights._make([*torch_weights, own]),
            gamma=scales,
            beta=shifts,
        )
        output, last, moments, states = reference.layer(own_call, make_site=make_site)
        taken.update(moments)
        return output, *last, *states

    given = [weight for weight in plain if weight is not None]
    leaves = [*gamma.values(), call.x, *state, *given, *weights.own.values(), *beta.values()]
    if not torch.is_grad_enabled():
        output, *rest = run(leaves)
    else:
        output, *rest = _Whole.apply(run, len(gamma), *leaves)  # type: ignore[no-untyped-call]
    return LayerResult(output, tuple(rest[: len(state)]), taken, tuple(rest[len(state) :]))


class _Whole(torch.autograd.Function):
    """A function whose inner graph runs backward as a whole, whichever outputs are used."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[list[Tensor]], tuple[Tensor, ...]], always: int, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        """Return ``run(leaves)``; backward always computes the gradients of the first ``always``.

        These are the scales, one of each normalisation, so every rank runs each exchange.
        """
        needed = ctx.needs_input_grad[2:]
        ctx.asked = [k < always or of_user for k, of_user in enumerate(needed)]
        with torch.enable_grad():
            inner = [
                leaf.detach().requires_grad_(asked)
                for leaf, asked in zip(leaves, ctx.asked, strict=True)
            ]
            outputs = run(inner)
        asked_for = [leaf for leaf, asked in zip(inner, ctx.asked, strict=True) if asked]
        # saved tensors free the graph behind them after backward
        ctx.save_for_backward(*outputs, *asked_for)
        ctx.outputs = len(outputs)
        return tuple(output.detach() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, computed through every step."""
        saved = ctx.saved_tensors
        outputs, leaves = saved[: ctx.outputs], saved[ctx.outputs :]
        used = [k for k, output in enumerate(outputs) if output.requires_grad]
        found = iter(
            torch.autograd.grad(
                [outputs[k] for k in used],
                leaves,
                [grads[k] for k in used],
                # the user may keep the graph too
                retain_graph=True,
                allow_unused=True,
            )
        )
        return None, None, *(next(found) if asked else None for asked in ctx.asked)
