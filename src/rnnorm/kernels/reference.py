"""The definition: one layer in one direction over a whole sequence, in plain PyTorch.

Any device, cell, site and dtype; twice differentiable. Every faster kernel takes the same
call and is tested against it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.kernels.call import LayerCall, LayerResult
from rnnorm.kernels.sites import Normaliser, input_terms, is_whole
from rnnorm.norm.moments import BatchSite, Moments
from rnnorm.norm.spec import field_of

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
    cell, step = call.cell, call.step
    T, B, _ = call.x.shape
    sizes = [B] * T if call.batch_sizes is None else call.batch_sizes.tolist()
    wide = torch.promote_types(call.x.dtype, torch.float32)
    state_dtype = [s.dtype for s in call.state]
    state = tuple(s.to(wide) for s in call.state)
    masks = {
        place: mask.numbers(wide).expand(T, -1, -1).unbind(0)
        for place, mask in (call.masks or {}).items()
    }
    zones = [masks.get(f"zoneout_{name}") for name in cell.states]
    zoned = any(zones)
    normalise = Normaliser(call, wide, masks, make_site)
    x_terms = input_terms(call, normalise, sizes, wide)
    weights = cell.prepare(call.weights)
    reset = None if call.reset is None else call.reset.unsqueeze(2)
    ages: Iterable[int | Tensor]
    if isinstance(step, int) and reset is None:
        ages = range(step, step + T)
    else:
        ages = [age[:n] for age, n in zip(ages_of(call).unbind(0), sizes, strict=True)]
    active = B
    outputs: list[Tensor] = []
    steps: list[State] = []
    finished: list[State] = []
    for t, (x_term, n, age) in enumerate(zip(x_terms, sizes, ages, strict=True)):
        normalise.t = t
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
            _check_returned(cell, returned, before, versions)
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
        _warn_of_unasked(cell, cell.norms(call.norm), normalise.asked)
    state_n = tuple(
        (torch.cat(rows[::-1]) if len(rows) > 1 else rows[0]).to(dtype)
        for rows, dtype in zip(zip(*finished, strict=True), state_dtype, strict=True)
    )
    taken: dict[str, Moments] = {}
    if call.min_rows is not None:
        for site, statistic in normalise.batch.items():
            _check_asked_once(cell, site, statistic)
            taken[site] = statistic.taken(1 if site == "input" and is_whole(call) else T)
    states = tuple(
        _stack(each, B, sizes).to(dtype)
        for each, dtype in zip(zip(*steps, strict=True), state_dtype, strict=False)
    )
    return LayerResult(_stack(outputs, B, sizes).to(call.x.dtype), state_n, taken, states)


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


def _stack(terms: Sequence[Tensor], rows: int, sizes: list[int]) -> Tensor:
    """Stack terms ``(n_t, ·)`` of all steps to ``(T, rows, ·)``, with zeros where rows ended."""
    if sizes[-1] == rows:
        return torch.stack(list(terms))
    zeros = terms[0].new_zeros(rows, terms[0].size(1))
    ended = {n: zeros[n:] for n in set(sizes)}
    parts = [part for term, n in zip(terms, sizes, strict=True) for part in (term, ended[n])]
    return torch.cat(parts).view(len(sizes), rows, zeros.size(1))


def _versions(state: State) -> list[int]:
    """Return how often each state was changed in place, as far as torch counts it."""
    return [0 if s.is_inference() else s._version for s in state]


def _run_step(
    cell: Cell,
    weights: Weights,
    x_term: Tensor,
    state: State,
    normalise: Normaliser,
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


def _check_returned(cell: Cell, returned: object, before: State, versions: list[int]) -> None:
    """Refuse what ``cell.step`` returned if it is not an output and states as large as before.

    Raises:
        RuntimeError: if it is not two values, the second is not a tuple of tensors with the shapes
            of ``before``, the first is not a tensor with as many rows, or ``before`` has other
            ``versions`` now, since the step has changed it in place.
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
    if _versions(before) != versions:
        raise RuntimeError(
            f"{cell.name}.step must not change its states in place, which are outputs of "
            "the step before: compute new ones, or change clones"
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
