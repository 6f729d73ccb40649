"""The run of one layer in one direction: statistics in, kernel, statistics out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import State, Weights
from rnnorm.kernels import dispatch
from rnnorm.kernels.call import LayerCall, Mask
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.own_cell import built_in
from rnnorm.layers.call import short_call
from rnnorm.layers.call.autocast import in_products, without_autocast
from rnnorm.layers.call.checks import check_device
from rnnorm.layers.normalised_module import NormalisedModule
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population
from rnnorm.norm.spec import CELL_SITES, BatchNorm, field_of
from rnnorm.tracing import holds, known


def parameter(module: nn.Module, name: str) -> Any:
    """Return ``getattr(module, name, None)``, faster for a plain parameter."""
    own = module._parameters.get(name)
    # parametrization and weight_norm move a parameter elsewhere
    return getattr(module, name, None) if own is None else own


class CallSettings(NamedTuple):
    """The kernel and options that all layers and directions of a call share.

    Args:
        kernel: kernel that runs each layer.
        step: index of the first frame, also ``(B,)`` where no statistic is taken.
        products: the dtype of matrix products under autocast, else None.
        reset: ``(T, B)`` bool, where rows begin anew.
        all_states: whether the states after each step are returned too.
        clears: whether the output must be zero where padded.
    """

    kernel: dispatch.Kernel
    step: int | Tensor
    products: torch.dtype | None
    reset: Tensor | None = None
    all_states: bool = False
    clears: bool = True


def run_layer(
    module: NormalisedModule,
    settings: CallSettings,
    x: Tensor,
    batch_sizes: Tensor | None,
    state: State,
    suffix: str = "",
    masks: Mapping[str, Mask] | None = None,
    rows: ActiveRows | None = None,
) -> tuple[Tensor, State, State]:
    """Run a layer whose parameters and populations are attributes of ``module``.

    Args:
        module: holds ``weight_ih{suffix}`` and so on, the cell and the norm.
        settings: the kernel and options of the call; the kernel restarts rows at a ``reset``.
        x: ``(T, B, I)``, the longest row first.
        batch_sizes: ``(T,)`` int64 on the CPU, or None if every row is active at every step.
        state: the states ``(B, ·)``.
        suffix: suffix of the parameters' names.
        masks: masks of recurrent dropout.
        rows: active rows of all ranks if layers are synchronised; ``batch_sizes`` are then given.

    Returns:
        output ``(T, B, H_out)``, the final state, and ``(T, B, ·)`` the states after each step,
        empty unless asked for.

    Raises:
        ValueError: if in training with gradients there are too few rows for a statistic, and no
            estimate.
    """
    kernel, step, products = settings.kernel, settings.step, settings.products
    reset, all_states, clears = settings.reset, settings.all_states, settings.clears
    given = (products, rows, reset)
    unusual = masks or all_states or not clears or any([each is not None for each in given])
    if kernel.layer is cpu.layer and not unusual:
        found = short_call.run(module, x, batch_sizes, state, suffix, step)
        if found is not None:
            return *found, ()
    if masks and "input" in masks:
        x = x * masks["input"].numbers(x.dtype)
        # no kernel handles the input mask
        masks = {place: mask for place, mask in masks.items() if place != "input"}
    cell, norm = module.cell, module.norm
    norms = cell.norms(norm)
    batch_norms = {site: spec for site, spec in norms.items() if isinstance(spec, BatchNorm)}
    populations: dict[str, Population] = {
        site: module._modules[f"population_{site}{suffix}"]  # type: ignore[misc]
        for site in batch_norms
    }
    min_rows = None
    if module.training and batch_norms:
        # a minibatch with fewer rows from the start still trains
        most = x.size(1) if rows is None else int(rows.each[:, 0].sum())
        # the specs of all sites agree
        min_rows = max(2, min(next(iter(batch_norms.values())).min_rows, most))
    # first, so that a call without them adds no statistics
    weights, gamma, beta = _parameters(module, tuple(norms), suffix)
    counts: dict[str, Tensor | int] = {}
    if min_rows is None:
        constants = kernel.look_up(populations, step, x.size(0))
    else:
        assert isinstance(step, int)
        constants, counts = _statistics(module, populations, x, batch_sizes, min_rows, step, rows)
    moments = [m for pair in constants.values() for m in pair]
    own = [*weights.own.values(), *gamma.values(), *beta.values()]
    device = x.device
    for tensor in (*weights[:-1], *own, *moments):
        if tensor is not None and tensor.device != device:
            check_device("parameter", tensor, x)
    layer = kernel.layer if rows is None else kernel.synchronized
    assert layer is not None
    if products is not None:
        x = x if x.dtype == torch.float64 else x.to(products)
        weights = in_products(weights, products)
    with without_autocast(x.device, products):
        call = LayerCall(
            cell=cell,
            norm=norm,
            x=x,
            batch_sizes=batch_sizes,
            state=state,
            weights=weights,
            gamma=gamma,
            beta=beta,
            constants=constants,
            min_rows=min_rows,
            step=step,
            masks=masks,
            rows=rows,
            reset=reset,
            all_states=all_states,
            clears=clears,
        )
        output, state, taken, states = layer(call)
    if taken:
        assert isinstance(step, int)
        kernel.update(populations, taken, counts, step)
    # a kernel that returns no states has one state, its output
    return output, state, (states or (output,)) if all_states else ()


def _statistics(
    module: NormalisedModule,
    populations: Mapping[str, Population],
    x: Tensor,
    batch_sizes: Tensor | None,
    min_rows: int,
    step: int,
    rows: ActiveRows | None,
) -> tuple[dict[str, Moments], dict[str, Tensor | int]]:
    """Return the population's moments that steps of training need, and the rows behind new ones.

    Raises:
        ValueError: if in training with gradients there are too few rows for a statistic, and no
            estimate.
    """
    T, B, _ = x.shape
    constants: dict[str, Moments] = {}
    counts: dict[str, Tensor | int] = {}
    taken: dict[bool, Tensor] = {}
    active_rows = batch_sizes if rows is None else rows.each.sum(0)
    for site, population in populations.items():
        whole = _is_whole(module, site)
        if active_rows is None and min_rows <= B and not torch.compiler.is_compiling():
            counts[site] = T * B if whole else B
            population.grow(step + T)
            continue
        count = torch.full((T,), B, device="cpu") if active_rows is None else active_rows
        count = count.sum(0, keepdim=True) if whole else count
        if whole not in taken:
            taken[whole] = torch.where(count >= min_rows, count, 0)
        counts[site] = taken[whole]
        first = known(count[0])
        # no rows are added for a statistic that is not taken
        few = first is not None and first < min_rows
        population.grow(0 if few else step + T, agreed=rows is not None)
        if few or first is None:
            _check_estimate(module, site, population, count[0], step)
            constants[site] = population.consecutive(step, count.size(0))
        elif not built_in(module.cell) and known(population.num_batches_tracked.any()) != 0:
            # another cell may use a site first at a late step, with fewer active rows
            constants[site] = population.consecutive(step, count.size(0))
    return constants, counts


def _is_whole(module: NormalisedModule, site: str) -> bool:
    """Tell whether a site has one statistic over all frames."""
    return module.norm is not None and bool(module.norm.scope(site) == "sequence")


def _check_estimate(
    module: NormalisedModule, site: str, population: Population, count: Tensor, step: int
) -> None:
    """Check, for too few rows in training, that there is an estimate to use, and warn once.

    Without gradients, as in a run to find out shapes, mean 0 and variance 1 may be used.

    Raises:
        ValueError: if there are gradients and no estimate, or the population may not be used.
    """
    whole = _is_whole(module, site)
    estimate = population.num_batches_tracked.any()
    first, estimated = known(count), known(estimate)
    expected = f"norm.{site}: expected at least 2 active {'frames' if whole else 'rows'}"
    remedy = (
        "leave out a last minibatch that is too small (DataLoader's drop_last), or choose "
        'norm="layer", which needs no other rows'
    )
    # late in a sequence few rows may be left of many, and the statistics of an earlier step serve
    earlier = population.num_batches_tracked[:step].any()
    enough, missing = (count >= 2) | earlier, ""
    if module._population_serves:
        enough = enough | estimate
        missing = ", and the population has no estimate yet that could serve"
    asked = torch.is_grad_enabled() and (first is None or estimated == 0)
    if (asked or not module._population_serves) and not holds(enough, expected):
        raise ValueError(
            f"{expected} at step {step} in training, got {int(count)}{missing}: {remedy}"
        )
    if first is not None and estimated is not None and known(earlier) == 0:
        served = "the population's statistics, as in evaluation" if estimated else "0 and 1"
        module.warn_of_few_rows(
            bool(estimated),
            f"{expected} in training, got {first}: mean and variance are {served}, and no "
            f"statistic is taken; {remedy}",
        )


def _parameters(
    module: NormalisedModule, active: Sequence[str], suffix: str
) -> tuple[Weights, dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights, and γ and β by site.

    Raises:
        RuntimeError: if a γ, a β or a weight that the cell needs is gone.
    """
    own = {name: parameter(module, name + suffix) for name in module.own_weights}
    # the weights of torch.nn, then the cell's own
    weights = Weights._make([*[parameter(module, n + suffix) for n in Weights._fields[:-1]], own])
    gamma = {site: parameter(module, f"gamma_{site}{suffix}") for site in active}
    shifted = [site for site in active if field_of(site) in CELL_SITES]
    beta = {site: parameter(module, f"beta_{site}{suffix}") for site in shifted}
    found = weights._asdict() | own
    needed = {name: found[name] for name in module._needed_weights()}
    needed |= {f"gamma_{site}": value for site, value in gamma.items()}
    needed |= {f"beta_{site}": value for site, value in beta.items()}
    for name, value in needed.items():
        if value is None:
            raise RuntimeError(f"{name}{suffix} must be a parameter, got None")
    return weights, gamma, beta
