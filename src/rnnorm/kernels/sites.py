"""The terms of a cell's equations, and what changes them at each site, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from rnnorm.cells.cell import product
from rnnorm.kernels.call import LayerCall
from rnnorm.norm.moments import BatchSite
from rnnorm.norm.spec import Norm

#: changes a term at a step; None leaves it as it is
Change = Callable[[Tensor, int], Tensor] | None


class Normaliser:
    """Changes a term at a site of step ``t``: what ``Cell.step`` gets as ``normalise``.

    Args:
        call: the layer and its tensors.
        wide: dtype of the terms.
        masks: masks of recurrent dropout by place and step.
        make_site: makes the normalisation of a batch-normalised site.

    Attributes:
        t: the step.
        asked: sites for which steps have asked.
        shifts: what is added at each site.
        batch: the batch-normalised sites.
        unchanged: sites where a term stays as it is.
        transposed: the transpose of a weight, a view kept from step to step.
    """

    def __init__(
        self,
        call: LayerCall,
        wide: torch.dtype,
        masks: Mapping[str, Sequence[Tensor]],
        make_site: Callable[..., BatchSite],
    ) -> None:
        self.t = 0
        self.asked: set[str] = set()
        self._cell = call.cell
        norms = call.cell.norms(call.norm)
        shifts = {**call.cell.shifts(call.weights, tuple(norms)), **call.beta}
        self.shifts = {site: s.to(wide) for site, s in shifts.items()}
        gamma = {site: g.to(wide) for site, g in call.gamma.items()}
        constants = {site: (m.to(wide), v.to(wide)) for site, (m, v) in call.constants.items()}
        self.batch = {
            site: make_site(
                *(gamma[site], self.shifts.get(site), spec.eps, constants.get(site)),
                *(call.min_rows, call.x.size(0)),
            )
            for site, spec in norms.items()
            if spec.takes_statistics
        }
        self._changes = fixed_sites(call, gamma, self.shifts) | self.batch
        for place in ("hidden", "candidate"):
            if place in masks:
                self._changes[place] = partial(_mask, masks[place])
        self.unchanged = {site for site, change in self._changes.items() if change is None}
        # bounded, as a cell may make a weight of its own at each step
        self.transposed = lru_cache(8)(Tensor.t)

    def __call__(self, site: str, z: Tensor) -> Tensor:
        """Return the term ``z`` as the equations read it."""
        self.asked.add(site)
        try:
            change = self._changes[site]
        except KeyError:
            problem = f"{self._cell}.sites must have {site!r}, for which its step asks"
            raise ValueError(problem) from None
        return z if change is None else change(z, self.t)


def fixed_sites(
    call: LayerCall, gamma: Mapping[str, Tensor], shifts: Mapping[str, Tensor]
) -> dict[str, Change]:
    """Return the sites that need no statistic over rows: a shift, or a row's own norm.

    Raises:
        ValueError: if a cell reads another number of units from its weights than it has.
    """
    cell, units = call.cell, call.cell.units(call.weights)
    sites: dict[str, Change] = dict.fromkeys(("input", *cell.sites, "hidden", "candidate"))
    sites |= {site: partial(_add, shift) for site, shift in shifts.items() if site in sites}
    for site, spec in cell.norms(call.norm).items():
        if not spec.takes_statistics:
            widths = cell.widths(site, units, spec)
            if sum(widths) != len(gamma[site]):
                raise ValueError(
                    f"{cell.name}.units must return the number of units, got {units}: the site "
                    f"{site!r} has {len(gamma[site])} columns, not {sum(widths)}"
                )
            sites[site] = partial(_normalise_rows, spec, widths, gamma[site], shifts.get(site))
    return sites


def input_terms(
    call: LayerCall, normalise: Normaliser, sizes: list[int], wide: torch.dtype
) -> Iterable[Tensor]:
    """Return the input term of each step, computed for all steps at once."""
    frames, weight = _active_frames(call.x, sizes).to(wide), call.weights.weight_ih
    if call.cell.reads_frames:
        return torch.split(frames, sizes)
    if "input" in normalise.batch:
        return normalise.batch["input"].terms(product(frames, weight), sizes, is_whole(call))
    if "input" in call.cell.norms(call.norm):
        return torch.split(normalise("input", product(frames, weight)), sizes)
    return torch.split(product(frames, weight, normalise.shifts.get("input")), sizes)


def is_whole(call: LayerCall) -> bool:
    """Tell whether the input terms of all steps have one statistic."""
    return call.norm is not None and call.norm.scope("input") == "sequence"


def _active_frames(x: Tensor, sizes: list[int]) -> Tensor:
    """Return the frames of the active rows, step after step, ``(Σ n_t, I)``."""
    frames, rows = x.flatten(0, 1), x.size(1)
    if sizes[-1] == rows:
        return frames
    parts = torch.split(frames, [part for n in sizes for part in (n, rows - n)])
    return torch.cat(parts[::2])


def _add(shift: Tensor, z: Tensor, t: int) -> Tensor:
    """Add the shift of a site to a term."""
    return z + shift


def _mask(masks: Sequence[Tensor], z: Tensor, t: int) -> Tensor:
    """Multiply a term by the mask of its step."""
    return z * masks[t][: z.size(0)]


def _normalise_rows(
    norm: Norm, widths: list[int], gamma: Tensor, shift: Tensor | None, z: Tensor, t: int
) -> Tensor:
    """Normalise each row of a term by its own statistics."""
    return norm.normalise_rows(z, widths, gamma, shift)
