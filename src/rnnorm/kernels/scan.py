"""The reference as a loop of torch's scan: exported programs with any number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rnnorm.cells.cell import State, product
from rnnorm.kernels.call import LayerCall, LayerResult, Request
from rnnorm.kernels.reference import ages_of, begin_anew, zone_out
from rnnorm.kernels.sites import fixed_sites
from rnnorm.norm.moments import Moments, normalise_by, scale_of
from rnnorm.tracing import RELEASE

_LEAST = (2, 13)


def _unavailable() -> str:
    """Say why the kernel cannot run here, empty if it can."""
    return "" if RELEASE >= _LEAST else f"it needs torch {'.'.join(map(str, _LEAST))}"


#: why the kernel cannot run here; earlier versions were not tried, and some scans take no weights
UNAVAILABLE = _unavailable()


def refuses(request: Request) -> str:
    """Say why the kernel does not compute a request, empty if it does."""
    if not request.exported:
        return "it is for torch.export"
    if request.one_step:
        return "a cell's step is not a loop"
    if request.training and request.norm is not None and request.norm.takes_statistics:
        return "it takes no statistics"
    if request.training and set(request.masked) - {"input"}:
        return "it has one mask of recurrent dropout for all steps"
    return ""


def _is_one(size: int | torch.SymInt) -> bool:
    """Tell whether a size is fixed at 1."""
    # comparing a symbolic size would fix it
    return isinstance(size, int) and size == 1


def _grow_older(age: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ages of the next step, and those of this one."""
    age = torch.where(reset, 0, age)
    return age + 1, age.clone()


def layer(call: LayerCall) -> LayerResult:
    """Run a layer as ``reference.layer`` does, without taking statistics.

    Masks of recurrent dropout must be the same at every step.
    """
    # a slow import
    from torch._higher_order_ops.scan import scan

    cell, x, weights, B = call.cell, call.x, call.weights, call.x.size(1)
    wide = torch.promote_types(x.dtype, torch.float32)
    dtypes = [s.dtype for s in call.state]
    norms = cell.norms(call.norm)
    shifts = {site: s.to(wide).clone() for site, s in cell.shifts(weights, tuple(norms)).items()}
    shifts |= {site: s.to(wide) for site, s in call.beta.items()}
    gamma = {site: g.to(wide) for site, g in call.gamma.items()}
    sites = fixed_sites(call, gamma, shifts)
    statistics = _served(call, gamma)
    masked = {place: mask.numbers(wide)[0] for place, mask in (call.masks or {}).items()}
    zones = [masked.get(f"zoneout_{name}") for name in cell.states]

    def normalise(by: Mapping[str, Moments], site: str, z: Tensor) -> Tensor:
        if site in masked:
            return z * masked[site]
        if site in by:
            return normalise_by(z, *by[site], shifts.get(site))
        change = sites[site]
        return z if change is None else change(z, 0)

    frames = _frames(call)
    if "active" in frames:
        # nan in the padding would reach gradients as 0 times nan
        x = x.masked_fill(~frames["active"], 0)
    terms = x.to(wide)
    if not cell.reads_frames:
        terms = normalise(statistics, "input", product(x, weights.weight_ih).to(wide))
    frames["term"] = terms
    # a row for all steps is captured by the loop, rows for single steps are scanned
    single = [site for site, (mean, _) in statistics.items() if _is_one(mean.size(0))]
    shared = {
        site: (mean[0], scale[0]) for site, (mean, scale) in statistics.items() if site in single
    }
    frames["statistics"] = {site: m for site, m in statistics.items() if site not in single}
    weights = cell.prepare(weights)
    # scan refuses two views of one tensor
    weights = weights._replace(own={name: w.clone() for name, w in weights.own.items()})

    def advance(last: State, frame: dict[str, Any]) -> tuple[State, State]:
        by = {**shared, **frame["statistics"]}
        before = begin_anew(frame["reset"], last) if "reset" in frame else last
        # inductor takes the number of rows from the loop's arguments
        output, after = cell.step(
            weights,
            frame["term"].view(B, -1),
            before,
            lambda site, z: normalise(by, site, z),
            frame["age"],
        )
        if any(zone is not None for zone in zones):
            output, after = zone_out(zones, before, output, after)
        kept = (output, *after) if call.all_states else (output,)
        if "active" not in frame:
            # results may alias neither one another nor the arguments
            return tuple(s.clone() for s in after), tuple(s.clone() for s in kept)
        active = frame["active"]
        # a reset in the padding changes no state
        after = tuple(torch.where(active, s, b) for s, b in zip(after, last, strict=True))
        return after, tuple(torch.where(active, s, 0) for s in kept)

    # scan requires states in and out to have one layout, which an expanded state has not
    first = tuple(s.to(wide).clone(memory_format=torch.contiguous_format) for s in call.state)
    state, (output, *states) = scan(advance, first, frames)
    state = tuple(s.to(dtype) for s, dtype in zip(state, dtypes, strict=True))
    every = tuple(s.to(dtype) for s, dtype in zip(states, dtypes, strict=False))
    return LayerResult(output.to(x.dtype), state, {}, every)


def _served(call: LayerCall, gamma: Mapping[str, Tensor]) -> dict[str, Moments]:
    """Return the mean and the scale of each site with statistics, of all steps or of each.

    Args:
        call: the call.
        gamma: the scale of each site, whose dtype the results have.
    """
    T, device, norms = call.x.size(0), call.x.device, call.cell.norms(call.norm)
    served = {}
    for site, (mean, var) in call.constants.items():
        wide = gamma[site].dtype
        # ONNX would store a Python number as float32
        eps = torch.tensor(norms[site].eps, dtype=wide, device=device)
        mean, scale = mean.to(wide), scale_of(gamma[site], var.to(wide), eps)
        if not _is_one(mean.size(0)) and mean.size(0) != T:
            # the loop gets one row for each step
            row = torch.arange(T, device=device).clamp(max=mean.size(0) - 1)
            mean, scale = mean[row], scale[row]
        served[site] = mean, scale
    return served


def _frames(call: LayerCall) -> dict[str, Any]:
    """Return the ages of the rows at each step, and which of them begin anew or are active."""
    ages, (T, B, _) = ages_of(call._replace(reset=None)), call.x.shape
    frames: dict[str, Any] = {"age": ages}
    if call.reset is not None:
        from torch._higher_order_ops.scan import scan

        frames["reset"] = call.reset.unsqueeze(2)
        # a loop of its own: ONNX has no running maximum, and autograd takes no integer state
        _, frames["age"] = scan(_grow_older, ages[0].clone(), frames["reset"])
    if call.batch_sizes is not None:
        sizes = call.batch_sizes.to(call.x.device).view(T, 1, 1)
        frames["active"] = torch.arange(B, device=call.x.device).view(1, B, 1) < sizes
    return frames
