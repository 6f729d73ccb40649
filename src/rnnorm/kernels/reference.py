"""The definition: one layer in one direction over a whole sequence, in plain PyTorch.

Any device, cell, site and dtype; twice differentiable. Every faster kernel takes the same
call and is tested against it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, Normalise, State, Weights, product
from rnnorm.kernels.call import LayerCall, LayerResult
from rnnorm.norm.moments import BatchSite, Moments
from rnnorm.norm.spec import Norm, field_of

#: changes a term at a step; None leaves it as it is
Site = Callable[[Tensor, int], Tensor] | None
# torch's words where a tensor of several numbers serves as one
_OF_ONE_NUMBER = ("Boolean value of Tensor", "be converted to")


def layer(
    call: LayerCall,
    *,
    make_site: Callable[..., BatchSite] = BatchSite,
    watch: Callable[[State], object] | None = None,
) -> LayerResult:
    """Run a cell over the active rows of every step.

    Products are computed in the dtype of ``x``, everything else in float32 or wider.

    Args:
        call: the layer and its tensors.
        make_site: makes the normalisation of a batch-normalised site. Other kernels have neither
            this argument nor the next.
        watch: is called with the states after each step, as the next step reads them.

    Raises:
        ValueError: if the cell asks for a batch-normalised site twice at a step, in training.
        RuntimeError: if its step returns something else than an output and states, changes the
            states in place (not seen in inference mode), or takes a number out of t where rows
            have different ages.

    Warns:
        UserWarning: if several steps from step 0 on do not ask for a site that is normalised.
    """
    cell, norm, x, weights, step = call.cell, call.norm, call.x, call.weights, call.step
    T, B, _ = x.shape
    sizes = [B] * T if call.batch_sizes is None else call.batch_sizes.tolist()
    wide = torch.promote_types(x.dtype, torch.float32)
    state_dtype = [s.dtype for s in call.state]
    state = tuple(s.to(wide) for s in call.state)

    norms = cell.norms(norm)
    whole = norm is not None and norm.scope("input") == "sequence"
    shifts = {**cell.shifts(weights, tuple(norms)), **call.beta}
    shifts = {site: s.to(wide) for site, s in shifts.items()}
    gamma = {site: g.to(wide) for site, g in call.gamma.items()}
    constants = {site: (m.to(wide), v.to(wide)) for site, (m, v) in call.constants.items()}
    sites = fixed_sites(call, gamma, shifts)
    batch: dict[str, BatchSite] = {}
    for site, spec in norms.items():
        if spec.takes_statistics:
            batch[site] = sites[site] = make_site(
                gamma[site], shifts.get(site), spec.eps, constants.get(site), call.min_rows, T
            )
    masked = {
        place: mask.numbers(wide).expand(T, -1, -1).unbind(0)
        for place, mask in (call.masks or {}).items()
    }
    for place in ("hidden", "candidate"):
        if place in masked:
            sites[place] = partial(_mask, masked[place])
    zones = [masked.get(f"zoneout_{name}") for name in cell.states]
    zoned = any(zones)
    t = 0
    asked = set()

    def normalise(site: str, z: Tensor) -> Tensor:
        asked.add(site)
        try:
            change = sites[site]
        except KeyError:
            problem = f"{cell}.sites must have {site!r}, for which its step asks"
            raise ValueError(problem) from None
        return z if change is None else change(z, t)

    unchanged = {site for site, change in sites.items() if change is None}
    normalise.unchanged = unchanged  # type: ignore[attr-defined]
    # views kept from step to step; bounded, as a cell may make a weight of its own at each step
    normalise.transposed = lru_cache(8)(Tensor.t)  # type: ignore[attr-defined]

    # what the frames of all steps need is computed at once
    frames = _active_frames(x, sizes).to(wide)
    x_terms: Iterable[Tensor]
    if cell.reads_frames:
        x_terms = torch.split(frames, sizes)
    elif "input" in batch:
        x_terms = batch["input"].terms(product(frames, weights.weight_ih), sizes, whole)
    elif "input" in norms:
        x_terms = torch.split(normalise("input", product(frames, weights.weight_ih)), sizes)
    else:
        x_terms = torch.split(product(frames, weights.weight_ih, shifts.get("input")), sizes)
    weights = cell.prepare(weights)
    reset = None if call.reset is None else call.reset.unsqueeze(2)
    ages: Iterable[int | Tensor]
    if isinstance(step, int) and reset is None:
        ages = range(step, step + T)
    else:
        # Python 3.13.0 crashes in torch.jit.trace if a variable here has the name of one that a
        # closure reads, as n
        ages = [age[:rows] for age, rows in zip(ages_of(call).unbind(0), sizes, strict=True)]
    active = B
    outputs: list[Tensor] = []
    steps: list[State] = []
    finished: list[State] = []
    for t, (x_term, n, age) in enumerate(zip(x_terms, sizes, ages, strict=True)):
        if n < active:
            finished.append(tuple(s[n:] for s in state))
            state = tuple(s[:n] for s in state)
            active = n
        if reset is not None:
            state = begin_anew(reset[t, :n], state)
        before = state
        versions = _versions(before) if t == 0 else []
        returned = _run_step(cell, weights, x_term, before, normalise, age)
        if t == 0:
            _check_returned(cell, returned, before)
            if _versions(before) != versions:
                raise RuntimeError(
                    f"{cell.name}.step must not change its states in place, which are outputs of "
                    "the step before: compute new ones, or change clones"
                )
        output, state = returned
        if zoned:
            now = [None if zone is None else zone[t][:n] for zone in zones]
            output, state = zone_out(now, before, output, state)
        if watch is not None:
            watch(state)
        outputs.append(output)
        if call.all_states:
            steps.append(state)

    finished.append(state)
    if T > 1 and isinstance(step, int) and step == 0:
        _warn_of_unasked(cell, norms, asked)
    state_n = tuple(
        (torch.cat(rows[::-1]) if len(rows) > 1 else rows[0]).to(dtype)
        for rows, dtype in zip(zip(*finished, strict=True), state_dtype, strict=True)
    )
    taken: dict[str, Moments] = {}
    if call.min_rows is not None:
        for site, statistic in batch.items():
            _check_asked_once(cell, site, statistic)
            taken[site] = statistic.taken(1 if whole and site == "input" else T)
    states = tuple(
        _stack(each, B, sizes).to(dtype)
        for each, dtype in zip(zip(*steps, strict=True), state_dtype, strict=False)
    )
    return LayerResult(_stack(outputs, B, sizes).to(x.dtype), state_n, taken, states)


def ages_of(call: LayerCall) -> Tensor:
    """Return each row's index of each step ``(T, B, 1)`` in its sequence, which a reset begins."""
    T, B, _ = call.x.shape
    t = torch.arange(T, device=call.x.device).unsqueeze(1)
    ages = (t + call.step).expand(T, B)
    if call.reset is not None:
        began = torch.where(call.reset, t, -1).cummax(0).values
        ages = torch.where(began < 0, ages, t - began)
    return ages.unsqueeze(2)


def begin_anew(reset: Tensor, state: State) -> State:
    """Return states of zeros where ``reset`` ``(n, 1)`` is True, and the given ones elsewhere."""
    # not a product, as 0 times nan is nan
    return tuple([torch.where(reset, torch.zeros_like(s), s) for s in state])


def fixed_sites(
    call: LayerCall, gamma: Mapping[str, Tensor], shifts: Mapping[str, Tensor]
) -> dict[str, Site]:
    """Return the sites that need no statistic over rows: a shift, or a row's own norm.

    Raises:
        ValueError: if a cell reads another number of units from its weights than it has.
    """
    cell, units = call.cell, call.cell.units(call.weights)
    sites: dict[str, Site] = dict.fromkeys(("input", *cell.sites, "hidden", "candidate"))
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


def _active_frames(x: Tensor, sizes: list[int]) -> Tensor:
    """Return the frames of the active rows, step after step, ``(Σ n_t, I)``."""
    frames, rows = x.flatten(0, 1), x.size(1)
    if sizes[-1] == rows:
        return frames
    parts = torch.split(frames, [part for n in sizes for part in (n, rows - n)])
    return torch.cat(parts[::2])


def _stack(terms: Sequence[Tensor], rows: int, sizes: list[int]) -> Tensor:
    """Stack terms ``(n_t, ·)`` of all steps to ``(T, rows, ·)``, with zeros where rows ended."""
    if sizes[-1] == rows:
        return torch.stack(list(terms))
    zeros = terms[0].new_zeros(rows, terms[0].size(1))
    ended = {n: zeros[n:] for n in set(sizes)}
    parts = [part for term, n in zip(terms, sizes, strict=True) for part in (term, ended[n])]
    return torch.cat(parts).view(len(sizes), rows, zeros.size(1))


def _add(shift: Tensor, z: Tensor, t: int) -> Tensor:
    """Add the shift of a site to a term."""
    return z + shift


def _mask(masks: Sequence[Tensor], z: Tensor, t: int) -> Tensor:
    """Multiply a term by the mask of its step."""
    return z * masks[t][: z.size(0)]


def _versions(state: State) -> list[int]:
    """Return how often each state was changed in place, as far as torch counts it."""
    return [0 if s.is_inference() else s._version for s in state]


def _run_step(
    cell: Cell,
    weights: Weights,
    x_term: Tensor,
    state: State,
    normalise: Normalise,
    age: int | Tensor,
) -> tuple[Tensor, State]:
    """Return what ``cell.step`` returns.

    Raises:
        RuntimeError: if it takes a number out of t where rows have different ages.
    """
    try:
        return cell.step(weights, x_term, state, normalise, age)
    except Exception as error:
        if isinstance(age, Tensor) and any([part in str(error) for part in _OF_ONE_NUMBER]):
            raise RuntimeError(
                f"{cell.name}.step must not take a number out of t, which is int64 (n, 1) "
                "where rows have different ages (reset=, or a tensor as step=): write "
                f"torch.where(t == 0, a, b) in place of a if t == 0 else b, got {error}"
            ) from error
        raise


def _check_asked_once(cell: Cell, site: str, statistic: BatchSite) -> None:
    """Refuse a cell that has asked for a batch-normalised site twice at a step.

    Raises:
        ValueError: if it has.
    """
    if statistic.repeated():
        raise ValueError(
            f"{cell.name}.step must ask for the site {site!r} once: statistics are of one "
            f"term, and another needs a site of its own, such as {field_of(site) + '_2'!r}"
        )


def _check_returned(cell: Cell, returned: object, before: State) -> None:
    """Refuse what ``cell.step`` returned if it is not an output and states as large as before.

    Raises:
        RuntimeError: if it is not two values, the second is not a tuple of tensors with the shapes
            of ``before``, or the first is not a tensor with as many rows.
    """
    wanted: object = [tuple(s.shape) for s in before]
    got: object = type(returned).__name__
    if isinstance(returned, tuple) and len(returned) != 2:
        got = f"{len(returned)} values"
    elif isinstance(returned, tuple):
        state = returned[1]
        got = type(state).__name__
        if isinstance(state, tuple):
            got = [tuple(getattr(s, "shape", ())) for s in state]
    if got != wanted:
        raise RuntimeError(
            f"{cell.name}.step must return its output and a tuple of its states "
            f"({', '.join(cell.states)}), as large as those it got, {wanted}, got {got}"
        )
    output = returned[0]  # type: ignore[index]
    shape = tuple(getattr(output, "shape", ()))
    rows = before[0].size(0)
    if len(shape) != 2 or shape[0] != rows:
        raise RuntimeError(
            f"{cell.name}.step must return an output ({rows}, ·), with the rows of its states, got "
            f"{shape or type(output).__name__}"
        )


def _warn_of_unasked(cell: Cell, norms: Collection[str], asked: Collection[str]) -> None:
    """Warn of a norm at a site for which no step has asked, so it had no effect."""
    for site in norms:
        if site != "input" and site not in asked:
            warnings.warn(
                f"{cell.name}.step has not asked for the site {site!r}, so nothing was normalised "
                f"there: call normalise({site!r}, term), or leave the site out of "
                f"{cell.name}.sites or of the norm",
                stacklevel=2,
            )


def zone_out(
    zones: Sequence[Tensor | None], before: State, output: Tensor, state: State
) -> tuple[Tensor, State]:
    """Return ``d s_{t-1} + (1 - d) s_t`` of each state with a mask d (Krueger et al. 2016).

    An output that is the first state is zoned out with it, and returned before the states.
    """
    zoned = tuple(
        new if zone is None else torch.lerp(new, old, zone)
        for zone, old, new in zip(zones, before, state, strict=True)
    )
    return zoned[0] if output is state[0] else output, zoned


def _normalise_rows(
    norm: Norm, widths: list[int], gamma: Tensor, shift: Tensor | None, z: Tensor, t: int
) -> Tensor:
    """Normalise each row of a term by its own statistics."""
    return norm.normalise_rows(z, widths, gamma, shift)
