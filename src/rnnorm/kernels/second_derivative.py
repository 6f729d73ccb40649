"""The backward pass and its derivative, computed by running the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rnnorm.cells.cell import Weights
from rnnorm.kernels import reference
from rnnorm.kernels.call import LayerCall, Mask
from rnnorm.kernels.equations.graph_cell import GraphCell, split_moments, split_products
from rnnorm.kernels.inputs import (
    PEEPHOLES,
    PLACES,
    Gradients,
    Inputs,
    Options,
    Results,
    joined,
    separated,
)
from rnnorm.kernels.known_cells import CELLS
from rnnorm.norm.presets import resolve
from rnnorm.norm.spec import BatchNorm, LayerNorm, Norm, RMSNorm


def _reference(inputs: Inputs, options: Options) -> tuple[Tensor, ...]:
    """Return output, h_n, c_n and all_c of a kernel's layer, computed by the reference."""
    wide = inputs.h0.dtype
    hidden, last = "joint" if options.joint else "recurrent", "carry" if options.carry else "cell"
    sites = ("input", hidden, last)
    scopes = zip(sites, options.by_site, options.eps, strict=True)
    specs = {site: _spec(site, scope, eps) for site, scope, eps in scopes if scope != "off"}
    norm = resolve(specs or None)
    peepholes = dict(zip(PEEPHOLES, inputs.peepholes, strict=True))
    own = {name: weight for name, weight in peepholes.items() if weight is not None}
    cell = next(
        cell
        for cell in CELLS[options.cell]
        if own.keys() <= cell.weights(1, cell.heads, False).keys()
    )
    gamma = {site: g for site, g in zip(sites, inputs.gammas, strict=True) if g is not None}
    constants = {
        site: (mean, var)
        for site, (mean, var) in zip(sites, inputs.constants, strict=True)
        if mean is not None and var is not None
    }
    if isinstance(cell, GraphCell):
        gamma = split_products(cell.graph, gamma)
        constants = split_moments(cell.graph, constants)
    call = LayerCall(
        cell=cell,
        norm=norm,
        x=inputs.x.to(wide),
        batch_sizes=inputs.sizes,
        state=(inputs.h0, *separated(inputs.c0, 2)),
        weights=Weights(
            inputs.weight_ih.to(wide),
            inputs.weight_hh.to(wide),
            inputs.bias_ih,
            inputs.bias_hh,
            None if inputs.weight_hr is None else inputs.weight_hr.to(wide),
            own=own,
        ),
        gamma=gamma,
        beta={} if inputs.beta_cell is None else {last: inputs.beta_cell},
        constants=constants,
        min_rows=None if options.min_rows < 0 else options.min_rows,
        masks={
            place: Mask(drawn, scale)
            for place, drawn, scale in zip(PLACES, inputs.masks, options.scales, strict=True)
            if drawn is not None
        },
        reset=inputs.reset,
        all_states=options.wants_all_c,
    )
    result = reference.layer(call)
    h_n, *more = result.state
    # without c there is no c_n
    c_n, all_c = joined(more), joined(result.states[1:])
    found = (result.output, h_n, result.output if c_n is None else c_n)
    return found if all_c is None else (*found, all_c)


def _spec(site: str, scope: str, eps: float) -> Norm:
    """Return the spec of a site with one of the scopes of a kernel's options."""
    kind, _, over = scope.partition("-")
    only: dict[str, Any]
    if kind in ("frame", "sequence"):
        only = {"input": None, "recurrent": None, "cell": None, site: kind}
        return BatchNorm(eps=eps, **only)
    only = {"input": False, "recurrent": False, "cell": False, site: True, "over": over or None}
    return LayerNorm(eps=eps, **only) if kind == "row" else RMSNorm(eps=eps, **only)


def backward(
    inputs: Inputs,
    _results: Results,
    upstream: Sequence[Tensor | None],
    options: Options,
    _wants_x: bool,
) -> Gradients:
    """Run the backward pass with the arguments of ``autograd.Passes.backward``.

    Where gradients are enabled, the result is differentiable.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [_leaf(tensor, again=again) for tensor in inputs.leaves]
        given = Inputs._make((*leaves, *inputs.without_gradients))
        found = _gradients(given, options, upstream, again=again)
    return Gradients._make(found)


def _leaf(tensor: Tensor | None, *, again: bool) -> Tensor | None:
    """Return a tensor with a gradient of its own, which is differentiable ``again`` or a leaf."""
    if tensor is None or not tensor.is_floating_point():
        return tensor
    if again and tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


def _gradients(
    given: Inputs, options: Options, upstream: Sequence[Tensor | None], *, again: bool
) -> list[Any]:
    """Return the gradient of each of ``Gradients``, None where there is none.

    Args:
        given: inputs, of which all leaves require gradients.
        options: options of the forward pass.
        upstream: gradients of output, h_n, c_n and all_c.
        again: whether the gradients are differentiable.
    """
    results = _reference(given, options)
    pairs = [(r, g) for r, g in zip(results, upstream, strict=False) if g is not None]
    sources = [t for t in given.leaves if t is not None and t.requires_grad]
    found = _by_id(pairs, sources, again=again)
    return [found.get(id(getattr(given, name))) for name in Gradients._fields]


def _by_id(
    pairs: Sequence[tuple[Tensor, Tensor]], sources: Sequence[Tensor], *, again: bool
) -> dict[int, Tensor | None]:
    """Return the gradient of each source, by its id.

    Args:
        pairs: results, each with its gradient.
        sources: tensors from which the results were computed.
        again: whether the gradients are differentiable.
    """
    results, grads = [r for r, _ in pairs], [g for _, g in pairs]
    found = torch.autograd.grad(results, sources, grads, create_graph=again, allow_unused=True)
    return dict(zip(map(id, sources), found, strict=True))


def differentiate(
    inputs: Inputs,
    options: Options,
    grad_results: Sequence[Tensor | None],
    grads: Gradients,
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Differentiate the backward pass; where gradients are enabled, differentiably.

    Args:
        inputs: inputs of the forward pass.
        options: options of the forward pass.
        grad_results: the gradients of output, h_n, c_n and all_c that the backward pass was given.
        grads: the gradient of each gradient that the backward pass returned.

    Returns:
        the gradients of ``inputs.leaves`` and those of ``grad_results``.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        first = [_leaf(t, again=again) for t in inputs.leaves]
        upstream = [_leaf(g, again=again) for g in grad_results]
        given = Inputs._make((*first, *inputs.without_gradients))
        returned = _gradients(given, options, upstream, again=True)
    wanted = [
        (b, g) for b, g in zip(returned, grads, strict=True) if b is not None and g is not None
    ]
    wanted = [(b, g) for b, g in wanted if b.requires_grad]
    targets = [t for t in (*first, *upstream) if t is not None and t.requires_grad]
    if not wanted:
        return [None] * len(first), [None] * len(upstream)
    second = _by_id(wanted, targets, again=again)
    return [second.get(id(t)) for t in first], [second.get(id(t)) for t in upstream]
