"""Registration, reset and look-up of the parameters and statistics of a layer's norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from rnnorm.cells.cell import Cell
from rnnorm.norm.population import Population
from rnnorm.norm.spec import CELL_SITES, BatchNorm, Norm, field_of


def register_norm(
    module: nn.Module,
    cell: Cell,
    norm: Norm | None,
    hidden_size: int,
    suffix: str = "",
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Register γ, β and the population of every normalised site in a module.

    Raises:
        ValueError: if ``norm`` asks for a site, a scope or columns that the cell does not have, or
            a weight of the cell has the name of γ or β.
    """
    by_step = any(site != "input" and field_of(site) == "input" for site in cell.sites)
    by_step = by_step or cell.reads_frames
    if by_step and norm is not None and norm.scope("input") == "sequence":
        raise ValueError(
            f"norm.input must be 'frame' or None for {cell.name}, got 'sequence': it normalises "
            "input terms step by step"
        )
    for site, spec in cell.norms(norm).items():
        for name in [f"gamma_{site}"] + [f"beta_{site}"] * (field_of(site) in CELL_SITES):
            if name + suffix in module._parameters:
                raise ValueError(
                    f"{cell.name}.weights must not have the name {name!r}, which is that of the "
                    "norm's parameter"
                )
        features = sum(cell.widths(site, hidden_size, spec))
        gamma = torch.full((features,), spec.initial_gamma(site), device=device, dtype=dtype)
        module.register_parameter(f"gamma_{site}{suffix}", nn.Parameter(gamma))
        if field_of(site) in CELL_SITES:
            beta = torch.zeros(features, device=device, dtype=dtype)
            module.register_parameter(f"beta_{site}{suffix}", nn.Parameter(beta))
        if isinstance(spec, BatchNorm):
            shared = spec.population == "shared" or spec.scope(site) == "sequence"
            population = Population(features, spec, shared=shared, device=device, dtype=dtype)
            module.add_module(f"population_{site}{suffix}", population)


def populations(module: nn.Module) -> list[Population]:
    """Return the populations of a layer or cell."""
    return [child for child in module._modules.values() if isinstance(child, Population)]


def reset_norm(
    module: nn.Module,
    cell: Cell,
    norm: Norm | None,
    suffixes: Iterable[str] = ("",),
    learned: Iterable[str] = (),
) -> None:
    """Reset γ to its initial value, β and learned initial states to 0.

    Args:
        module: layer or cell that holds the parameters.
        cell: names the sites.
        norm: says which sites are normalised.
        suffixes: suffixes of the parameter names, one for each layer and direction.
        learned: names of the states.

    Raises:
        RuntimeError: if a parameter has a parametrization without ``right_inverse``.
    """
    starts = {f"{name}_0{kind}": 0.0 for name in learned for kind in ("", "_weight")}
    for site, spec in cell.norms(norm).items():
        for suffix in suffixes:
            starts[f"gamma_{site}{suffix}"] = spec.initial_gamma(site)
            starts[f"beta_{site}{suffix}"] = 0.0
    for name in (*module._parameters, *getattr(module, "parametrizations", ())):
        # a subclass may have other parameters whose names begin alike
        if name not in starts:
            continue
        value, start = getattr(module, name), starts[name]
        if value is None:
            continue
        with torch.no_grad():
            if name in module._parameters:
                value.fill_(start)
            else:
                # assignment goes through the parametrization
                setattr(module, name, torch.full_like(value, start))
