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
        ValueError: if ``norm`` asks for a site or a scope that the cell does not have.
    """
    if cell.reads_frames and isinstance(norm, BatchNorm) and norm.input == "sequence":
        raise ValueError(
            f"norm.input must be 'frame' or None for {cell.name}, got 'sequence': it reads its "
            "input step by step"
        )
    for site in cell.active_sites(norm):
        assert norm is not None
        features = sum(cell.blocks(site, hidden_size))
        gamma = torch.full((features,), float(norm.gamma), device=device, dtype=dtype)
        module.register_parameter(f"gamma_{site}{suffix}", nn.Parameter(gamma))
        if field_of(site) in CELL_SITES:
            beta = torch.zeros(features, device=device, dtype=dtype)
            module.register_parameter(f"beta_{site}{suffix}", nn.Parameter(beta))
        if isinstance(norm, BatchNorm):
            shared = norm.population == "shared" or getattr(norm, field_of(site)) == "sequence"
            population = Population(features, norm, shared=shared, device=device, dtype=dtype)
            module.add_module(f"population_{site}{suffix}", population)


def populations(module: nn.Module) -> list[Population]:
    """Return the populations of a layer or cell."""
    return [child for child in module._modules.values() if isinstance(child, Population)]


def reset_running_stats(module: nn.Module) -> None:
    """Forget the population statistics of a layer or cell."""
    for population in populations(module):
        population.reset_running_stats()


def reset_norm(
    module: nn.Module,
    cell: Cell,
    norm: Norm | None,
    suffixes: Iterable[str] = ("",),
    learned: Iterable[str] = (),
) -> None:
    """Reset γ to its initial value, β and learned initial states to 0, and the statistics.

    Args:
        module: layer or cell that holds the parameters.
        cell: names the sites.
        norm: says which sites are normalised.
        suffixes: suffixes of the parameter names, one for each layer and direction.
        learned: names of the states.

    Raises:
        RuntimeError: if a parameter has a parametrization without ``right_inverse``.
    """
    sites = [site + suffix for site in cell.active_sites(norm) for suffix in suffixes]
    own = {f"{kind}_{site}" for kind in ("gamma", "beta") for site in sites}
    own |= {f"{name}_0{kind}" for name in learned for kind in ("", "_weight")}
    for name in (*module._parameters, *getattr(module, "parametrizations", ())):
        # a subclass may have other parameters whose names begin alike
        if name not in own:
            continue
        value, start = getattr(module, name), 0.0
        if value is None:
            continue
        if name.startswith("gamma_"):
            assert norm is not None
            start = norm.gamma
        with torch.no_grad():
            if name in module._parameters:
                value.fill_(start)
            else:
                # assignment goes through the parametrization
                setattr(module, name, torch.full_like(value, start))
    reset_running_stats(module)
