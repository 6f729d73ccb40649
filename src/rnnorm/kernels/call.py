"""A layer's call of a kernel, and the calls that a fused kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import SITES, Norm, field_of

# fields of a norm that a kernel reads as numbers, or that no kernel reads
_NUMBERS = ("gamma", "eps", "momentum", "population", "horizon", "min_rows")
#: the dtypes that fused kernels take
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


Result = TypeVar("Result")


class UncoveredError(RuntimeError):
    """Raised where a kernel covers a layer, but not one call of it, such as one of many rows."""


def remembered(function: Callable[..., Result]) -> Callable[..., Result]:
    """Keep the results of a function of a cell, a norm and other values, outside of traced code.

    Cells and norms are told apart by identity: those of a user may be unhashable, or may be equal
    and yet compute different things.
    """
    found: dict[tuple[Any, ...], tuple[Result, Any, Any]] = {}

    @wraps(function)
    def run(cell: Cell, norm: Norm | None, *rest: Any) -> Result:
        if torch.compiler.is_compiling():
            return function(cell, norm, *rest)
        key = (id(cell), id(norm), *rest)
        if (entry := found.get(key)) is None:
            if len(found) >= 1024:
                found.clear()
            # the entry keeps cell and norm alive, so that no other object gets their ids
            entry = found[key] = function(cell, norm, *rest), cell, norm
        return entry[0]

    return run


class Mask(NamedTuple):
    """A mask of recurrent dropout at one place: the numbers ``drawn * scale``.

    A mask takes one byte for each number until a kernel reads it.

    Args:
        drawn: ``(T, B, ·)`` bool, or broadcast to that.
        scale: value of the true numbers.
    """

    drawn: Tensor
    scale: float = 1.0

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers in a floating dtype, with the shape of ``drawn``."""
        return self.drawn.to(dtype) * self.scale


class LayerCall(NamedTuple):
    """One layer in one direction over a whole sequence, as every kernel gets it.

    Args:
        cell: the equations.
        norm: the kind of normalisation and its sites, None without.
        x: ``(T, B, I)``, the longest row first; padded positions are never read.
        batch_sizes: ``(T,)`` int64 on the CPU, the number of active rows, or None if all are.
        state: initial states, ``(B, ·)`` each.
        weights: of this layer and direction.
        gamma: scale of each site, ``(F,)``.
        beta: shift of the cell and carry sites, ``(H,)``.
        constants: mean and variance of each site for steps without a statistic of their own,
            ``(R, 1, F)``, or ``(R, B, F)`` for rows at different ages; the last of at most T
            serves all later steps.
        min_rows: fewest rows that a statistic is taken of; None if none is taken (evaluation).
        step: index of the first frame, or ``(B,)`` int64 for rows at different ages.
        masks: masks of recurrent dropout: factors of ``"hidden"`` and ``"candidate"``, and the
            part of the step before in the new state (``"zoneout_h"``, …).
        rows: the active rows of all ranks, if statistics are taken over these: ``x`` then has
            the same number of steps on all ranks, and ``min_rows`` counts the rows of all ranks.
        reset: ``(T, B)`` bool in the order of the rows: where True a row begins anew, from a
            state of zeros and at age 0, before that step. Given to kernels that restart rows.
        all_states: whether the states of all steps are asked for. A fused kernel of a cell with
            one state need not heed it.
        clears: whether the output must be zero where padded, because it is read there.
    """

    cell: Cell
    norm: Norm | None
    x: Tensor
    batch_sizes: Tensor | None
    state: State
    weights: Weights
    gamma: Mapping[str, Tensor]
    beta: Mapping[str, Tensor]
    constants: Mapping[str, Moments]
    min_rows: int | None
    step: int | Tensor = 0
    masks: Mapping[str, Mask] | None = None
    rows: ActiveRows | None = None
    reset: Tensor | None = None
    all_states: bool = False
    clears: bool = True


class LayerResult(NamedTuple):
    """The results of a kernel.

    Args:
        output: ``(T, B, H_out)``, zero where padded if the call ``clears``.
        state: the state of each row after its last frame.
        taken: mean and biased variance taken at each batch-normalised site, ``(T, F)``, or
            ``(1, F)`` for sequence scope; zero at steps with too few rows, NaN at steps where the
            cell has no such term; empty with ``min_rows=None``.
        states: the states after each step, ``(T, B, ·)`` each, zero where padded, if
            ``all_states`` asks for them; empty also where the output is the only state.
    """

    output: Tensor
    state: State
    taken: dict[str, Moments]
    states: State = ()


class Request(NamedTuple):
    """The properties of a layer by which a kernel is chosen, before there are tensors.

    ``padded`` says that rows come with their lengths or with resets, and ``even`` that the lengths
    are all the same. ``masked`` lists the places where recurrent dropout acts. ``states`` says that
    the states of all steps are asked for, ``compiled`` that torch.compile traces the call.
    ``exported`` is the format of a program that is being exported, ``"torch"`` or ``"onnx"``, or
    empty. ``synchronized`` says that statistics are over the rows of several processes.
    ``head_size`` is the number of units of a head, 0 in a cell without heads.
    """

    cell: Cell
    norm: Norm | None
    device: torch.device
    dtype: torch.dtype
    projected: bool = False
    padded: bool = False
    even: bool = False
    masked: tuple[str, ...] = ()
    training: bool = False
    one_step: bool = False
    states: bool = False
    compiled: bool = False
    exported: str = ""
    synchronized: bool = False
    head_size: int = 0

    def __str__(self) -> str:
        sites = ", ".join(self.cell.active_sites(self.norm))
        what = f"{type(self.norm).__name__} of {sites}" if sites else "no norm"
        projected = " and proj_size" if self.projected else ""
        masked = " and recurrent dropout" if self.masked else ""
        over = " over the rows of all ranks" if self.synchronized else ""
        states = " and all states" if self.states else ""
        return (
            f"{self.cell.name} with {what}{over}{projected}{masked}{states}, {self.dtype}, on "
            f"{self.device.type}"
        )


@dataclass(frozen=True)
class Coverage:
    """The layers that a fused kernel computes; another kernel runs all others.

    Args:
        cells: the cells, each with the options that it may have.
        norms: by kind of norm, the sites that it may normalise.
        masks: the places where recurrent dropout may act. Masks of the input are the layer's own.
        over: the columns that may share the statistics of a row, as ``LayerNorm.over`` names them.
        projected: whether h may be projected (``proj_size``).
        apart: sites that may have another spec than the others.
    """

    cells: Sequence[Cell]
    norms: Mapping[type[Norm], tuple[str, ...]]
    masks: tuple[str, ...] = ()
    over: tuple[str | None, ...] = (None,)
    projected: bool = False
    apart: tuple[str, ...] = ()

    def refuses(self, request: Request) -> str:
        """Say why the kernel does not compute a request, empty if it does."""
        if not listed(request.cell, self.cells):
            return f"it has no {request.cell}"
        return self.refuses_beside_cell(request)

    def refuses_beside_cell(self, request: Request) -> str:
        """Say why the kernel does not compute a request, whatever its cell, empty if it does."""
        cell = request.cell
        if request.dtype not in DTYPES:
            return f"it has no {request.dtype}"
        if request.projected and not self.projected:
            return "it has no proj_size"
        if why := self._refuses_norm(cell, cell.norms(request.norm)):
            return why
        unknown = [place for place in request.masked if place not in (*self.masks, "input")]
        if unknown:
            return f"it has no recurrent dropout of {', '.join(unknown)}"
        if torch._C._are_functorch_transforms_active():
            return "its operators have no torch.func transforms"
        if forward_ad._current_level >= 0:
            return "its operators have no forward-mode derivative"
        return ""

    def _refuses_norm(self, cell: Cell, specs: Mapping[str, Norm]) -> str:
        """Say why the kernel does not normalise a cell's sites by ``specs``, empty if it does."""
        for site, spec in specs.items():
            kind = type(spec)
            if kind not in self.norms:
                return f"it has no {kind.__name__}"
            if field_of(site) not in self.norms[kind]:
                return f"it does not normalise the site {site!r} by {kind.__name__}"
        for spec in specs.values():
            kind = type(spec)
            for field, value in vars(spec).items():
                known = field in (*SITES, *_NUMBERS) or (field == "over" and value in self.over)
                # an option has its default where it is not used
                if not known and value != getattr(kind, field, None):
                    return f"it has no {kind.__name__}({field}={value!r})"
        together = [spec for site, spec in specs.items() if field_of(site) not in self.apart]
        if len({(type(s), s.eps, getattr(s, "over", None)) for s in together}) > 1:
            others = f" but {', '.join(self.apart)}" if self.apart else ""
            return f"it has one norm for all sites{others}"
        if "carry" in specs and "cell" in specs:
            return "it has no cell site beside a carry site"
        if "carry" in specs and getattr(cell, "peephole", None):
            return "it has no peepholes beside a carry site"
        return ""


def listed(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Tell whether a cell is one of ``cells``, with all of its options."""
    # a cell's own comparison may leave options out
    return any([type(cell) is type(each) and vars(cell) == vars(each) for each in cells])
