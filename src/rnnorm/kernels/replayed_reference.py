"""The reference loop on a GPU, each pass captured as a CUDA graph where shapes repeat.

It is for the cells and options that no fused kernel has: the host launches a whole pass at once, in
place of several operations a step. Backward runs the loop once more, within the graph of its
derivative. So nothing but a call's arguments lives from one pass to the other, and calls of one
shape may share their graphs, whatever the order of their passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import (
    TreeSpec,
    tree_flatten,
    tree_leaves,
    tree_structure,
    tree_unflatten,
)

from rnnorm.kernels import cuda_graphs, reference
from rnnorm.kernels.call import LayerCall, LayerResult, Request
from rnnorm.tracing import unobserved

#: why it cannot run here
UNAVAILABLE = "" if torch.version.cuda else "torch is built without CUDA"
#: why it runs only where ``use_backend`` names it
UNPROVEN = "no GPU has run it yet: use_backend('cuda-graph') runs it"


def refuses(request: Request) -> str:
    """Say why a request is not run in a graph, empty if it is."""
    cell = request.cell
    if request.device.type != "cuda":
        return "it is for GPUs"
    if request.synchronized:
        return "it takes no statistics over the rows of several processes"
    if request.exported:
        return "no program that is exported has a graph of the GPU"
    for own in (cell, *cell.norms(request.norm).values()):
        if not type(own).__module__.startswith("rnnorm."):
            what = f"{type(own).__name__} of yours"
            return f"a graph cannot repeat all that {what} may do, such as draw numbers"
    if getattr(cell, "boundary", None) == "sample":
        return "backward would draw other boundaries than forward"
    return ""


def layer(call: LayerCall) -> LayerResult:
    """Run a layer as the reference does, in graphs unless its rows differ in length or in age.

    Lengths and ages seldom repeat. Neither is there a graph where something observes the operators,
    such as a transform of torch.func.
    """
    if call.batch_sizes is not None or isinstance(call.step, Tensor):
        return reference.layer(call)
    # calls of a stream share a graph if their steps mean the same to the cell
    periods = getattr(call.cell, "periods", (1,))
    leaves, spec = tree_flatten(call._replace(step=call.step % math.lcm(*periods)))
    if not unobserved(_tensors(leaves)):
        return reference.layer(call)
    return _result(call, cast(Any, _Loop.apply)(_Form(spec), *leaves))


class _Form:
    """The structure of a call, as a part of a key: torch 2.6 cannot hash a ``TreeSpec``."""

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec.num_leaves)


class _Loop(torch.autograd.Function):
    """The reference loop as one operation on the leaves of a call."""

    @staticmethod
    def forward(ctx: Any, form: _Form, *leaves: Any) -> tuple[Tensor, ...]:
        """Return the leaves of the result."""
        ctx.form = form
        ctx.save_for_backward(*[leaf if isinstance(leaf, Tensor) else None for leaf in leaves])
        ctx.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        ctx.set_materialize_grads(False)
        results = _replayed(_run, form, *leaves)
        call: LayerCall = tree_unflatten(leaves, form.spec)
        ctx.mark_non_differentiable(*tree_leaves(_result(call, results).taken))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the leaves."""
        form, wanted = ctx.form, ctx.needs_input_grad[1:]
        pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
        leaves = [other if saved is None else saved for saved, other in pairs]
        # forward was outside autocast
        with torch.autocast(_tensors(leaves)[0].device.type, enabled=False):
            if torch.is_grad_enabled():
                # gradients of gradients will be asked for
                aliases = [
                    leaf.view_as(leaf) if wants else leaf
                    for leaf, wants in zip(leaves, wanted, strict=True)
                ]
                found = _gradients(form, wanted, aliases, upstream, create_graph=True)
            elif unobserved(_tensors((*leaves, *upstream))):
                found = _replayed(_run_backward, form, wanted, *leaves, *upstream)
            else:
                # the gradients of a batch of losses, for example
                found = _run_backward(form, wanted, *leaves, *upstream)
        gradients = iter(found)
        return None, *[next(gradients) if wants else None for wants in wanted]


def _replayed(run: Callable[..., list[Tensor]], form: _Form, *rest: Any) -> list[Tensor]:
    """Return ``run(form, *rest)``, replayed from a graph where shapes repeat."""
    device = _tensors(rest)[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        graphs = cuda_graphs.current_graphs(device)
        return run(form, *rest) if graphs is None else graphs.run(run, (form, *rest))


def _tensors(leaves: Sequence[Any]) -> list[Tensor]:
    """Return the leaves that are tensors."""
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _run(form: _Form, *leaves: Any) -> list[Tensor]:
    """Run the loop on the leaves of a call; return the leaves of its result."""
    call: LayerCall = tree_unflatten(leaves, form.spec)
    return tree_leaves(reference.layer(call))


def _run_backward(form: _Form, wanted: Sequence[bool], *rest: Any) -> list[Tensor]:
    """Run the loop and its derivative; return the gradients of the leaves that are ``wanted``."""
    leaves, upstream = rest[: len(wanted)], rest[len(wanted) :]
    own = [
        leaf.detach().requires_grad_() if wants else leaf
        for leaf, wants in zip(leaves, wanted, strict=True)
    ]
    return _gradients(form, wanted, own, upstream, create_graph=False)


def _gradients(
    form: _Form,
    wanted: Sequence[bool],
    leaves: Sequence[Any],
    upstream: Sequence[Tensor | None],
    *,
    create_graph: bool,
) -> list[Tensor]:
    """Return the gradients of the leaves that are ``wanted``, zeros where the result reads none."""
    with torch.enable_grad():
        results = _run(form, *leaves)
    pairs = [
        (result, grad)
        for result, grad in zip(results, upstream, strict=True)
        if grad is not None and result.requires_grad
    ]
    return list(
        torch.autograd.grad(
            [result for result, _ in pairs],
            [leaf for leaf, wants in zip(leaves, wanted, strict=True) if wants],
            [grad for _, grad in pairs],
            create_graph=create_graph,
            materialize_grads=True,
        )
    )


def _result(call: LayerCall, leaves: Sequence[Tensor]) -> LayerResult:
    """Return the result of a call from its leaves."""
    taken: dict[str, Any] = {}
    if call.min_rows is not None:
        norms = call.cell.norms(call.norm).items()
        taken = {site: (0, 0) for site, spec in norms if spec.takes_statistics}
    state: Any = (0,) * len(call.state)
    form = tree_structure((0, state, taken, state if call.all_states else ()))
    return LayerResult(*tree_unflatten(leaves, form))
