"""What the two passes of a fused kernel take, as an operator's arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.call import LayerCall, Mask
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import BatchNorm, Norm

#: the cells that ``Inputs`` and ``Options`` can describe; those of one name, from fewer weights
#: to more
CELLS = (LSTM(), LSTM("output"), LSTM("all"), GRU(), RNN(), RNN("relu"))
_BY_NAME: Mapping[str, Cell] = {cell.name: cell for cell in CELLS}


class Inputs(NamedTuple):
    """The tensors that both passes take: contiguous, of one type, ``sizes`` int64.

    The hidden site is the recurrent or the joint one. Constants are ``(R, 1, F)`` or ``(R, B, F)``,
    the last of at most T serving all later steps, None where no step can need them. Masks are bool
    ``(T, B, H)`` with T and B or ones. What the cell or the layer does not have is None.
    """

    x: Tensor
    sizes: Tensor
    h0: Tensor
    c0: Tensor | None
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    weight_ci: Tensor | None
    weight_cf: Tensor | None
    weight_co: Tensor | None
    gamma_input: Tensor | None
    gamma_hidden: Tensor | None
    gamma_cell: Tensor | None
    beta_cell: Tensor | None
    mean_input: Tensor | None
    var_input: Tensor | None
    mean_hidden: Tensor | None
    var_hidden: Tensor | None
    mean_cell: Tensor | None
    var_cell: Tensor | None
    mask_hidden: Tensor | None
    mask_candidate: Tensor | None
    mask_zoneout_h: Tensor | None
    mask_zoneout_c: Tensor | None

    @property
    def peepholes(self) -> tuple[Tensor | None, ...]:
        """By gate."""
        return self[8:11]

    @property
    def gammas(self) -> tuple[Tensor | None, ...]:
        """By site."""
        return self[11:14]

    @property
    def constants(self) -> tuple[Tensor | None, ...]:
        """Mean and variance, site after site."""
        return self[15:21]

    @property
    def masks(self) -> tuple[Tensor | None, ...]:
        """By place."""
        return self[21:]

    @property
    def differentiable(self) -> bool:
        """Whether autograd has to see what is made of them."""
        return torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in self])


# the first inputs may have gradients, but for the sizes
LEAVES = 15
#: what a forward pass returns; moments are those of the input, the hidden and the cell site
RESULTS = (
    *("output", "h_n", "c_n"),
    *(f"taken_{k}_{site}" for site in ("input", "hidden", "cell") for k in ("mean", "var")),
    *("saved_x", "saved_h", "saved_c", "saved_carried"),
)
MOMENTS, SAVED = slice(3, 9), slice(9, 13)
# of the gates i, f and o
PEEPHOLES = ("weight_ci", "weight_cf", "weight_co")
# where recurrent dropout acts, in the order of the masks
PLACES = ("hidden", "candidate", "zoneout_h", "zoneout_c")
NO_MASKS = (None,) * len(PLACES)


class Options(NamedTuple):
    """What is not a tensor.

    Args:
        cell: name of the cell.
        scopes: of the input, hidden and cell site, separated by commas, "off" for none, "row" for
            layer norm.
        joint: whether the hidden site is the joint one.
        eps: added to the variance.
        min_rows: fewest rows that a statistic is taken of, -1 for none.
        scale_hidden: of the first mask, and so on.
    """

    cell: str
    scopes: str
    joint: bool
    eps: float
    min_rows: int
    scale_hidden: float
    scale_candidate: float
    scale_zoneout_h: float
    scale_zoneout_c: float

    @property
    def scales(self) -> tuple[float, ...]:
        """By place."""
        return self[5:]

    @property
    def gates(self) -> int:
        """How many gates the cell has."""
        return sum(_BY_NAME[self.cell].gates)

    @property
    def blocks(self) -> int:
        """How many groups of gates have a row statistic of their own."""
        return len(_BY_NAME[self.cell].gates)

    @property
    def has_c(self) -> bool:
        """Whether the cell has a state c."""
        return "c" in _BY_NAME[self.cell].states


def sites_of(active: Sequence[str]) -> tuple[str, str, str]:
    """The kernel's three sites by name, where some are normalised."""
    return "input", "joint" if "joint" in active else "recurrent", "cell"


def inputs_of(call: LayerCall, *, narrow: torch.dtype, wide: torch.dtype) -> Inputs:
    """Gathers what both passes take of a call: x and the matrices ``narrow``, all else ``wide``.

    Raises:
        RuntimeError: a parameter has another shape than the layer's.
    """

    def ready(tensor: Tensor | None, dtype: torch.dtype = wide) -> Tensor | None:
        if tensor is None or (tensor.dtype == dtype and tensor.is_contiguous()):
            return tensor
        return tensor.to(dtype).contiguous()

    x, batch_sizes, state, weights = call.x, call.batch_sizes, call.state, call.weights
    if batch_sizes is None:
        batch_sizes = torch.full((x.size(0),), x.size(1), dtype=torch.int64, device="cpu")
    sites, units = sites_of(call.cell.active_sites(call.norm)), state[0].size(1)
    statistics = [m for site in sites for m in call.constants.get(site, (None, None))]
    dropped = [call.masks.get(place) if call.masks else None for place in PLACES]
    inputs = Inputs._make(
        [
            ready(x, narrow),
            batch_sizes.contiguous(),
            ready(state[0]),
            ready(state[1]) if len(state) > 1 else None,
            *[ready(weight, narrow) for weight in weights[:2]],
            *map(ready, weights[2:4]),
            *[ready(weights.own.get(name)) for name in PEEPHOLES],
            *[ready(call.gamma.get(site)) for site in sites],
            ready(call.beta.get("cell")),
            *[ready(m.detach() if m is not None and m.requires_grad else m) for m in statistics],
            *[None if m is None else m.drawn.expand(-1, -1, units).contiguous() for m in dropped],
        ]
    )
    check_shapes(inputs, sum(call.cell.gates))
    return inputs


def check_shapes(inputs: Inputs, gates: int) -> None:
    """Refuses parameters and statistics beyond whose end the kernel would read.

    Raises:
        RuntimeError: one has another shape than that of a layer of so many gates and the units of
            its state.
    """
    (T, B), units = inputs.x.shape[:2], inputs.h0.size(1)
    gates *= units
    matrices = ((gates, inputs.x.size(2)), (gates, units))
    row, unit = (gates,), (units,)
    shapes = (*matrices, row, row, unit, unit, unit, row, row, unit, unit)
    for k, (given, shape) in enumerate(zip(inputs[4:LEAVES], shapes, strict=True), 4):
        if given is not None and given.shape != shape:
            raise RuntimeError(
                f"{Inputs._fields[k]} must have shape {shape}, got {tuple(given.shape)}"
            )
    if torch.compiler.is_compiling():
        # sizes may be symbols, of which every question makes constants
        return
    for k, width in ((LEAVES, gates), (LEAVES + 2, gates), (LEAVES + 4, units)):
        mean, var = inputs[k : k + 2]
        if mean is None or var is None:
            continue
        shape = mean.shape
        steps = min(len(mean), T)
        if not steps or var.shape != shape or shape not in ((steps, 1, width), (steps, B, width)):
            raise RuntimeError(
                f"mean and var of a population must have {width} features for each of at most {T} "
                f"steps, got {tuple(shape)} and {tuple(var.shape)}"
            )


def check_call(inputs: Inputs, options: Options, dtypes: Collection[torch.dtype]) -> None:
    """Refuses what nobody but a caller of an operator itself can give a kernel.

    That is an exported program that was changed by hand, or hooks on what a compiled one saves.

    Args:
        inputs: contiguous, which is all that is known of them.
        options: of which nothing is known.
        dtypes: of x, that the kernel takes.

    Raises:
        RuntimeError: a tensor has another dtype, device or shape than the kernel reads, sizes have
            other numbers, an option is unknown, or something is absent that the options ask for.
    """
    x, cell = inputs.x, options.cell
    scopes = options.scopes.split(",")
    kinds = {*scopes} - {"off"}
    taken = {"frame"}, {"frame", "sequence"}, {"sequence"}
    if (
        cell not in _BY_NAME
        or len(scopes) != 3
        or not (kinds <= {"row"} or (kinds in taken and "sequence" not in scopes[1:]))
        or (options.joint and ("joint" not in _BY_NAME[cell].sites or scopes[0] != "off"))
        or (scopes[2] != "off" and not options.has_c)
    ):
        raise RuntimeError(
            f"cell, scopes and joint must be those of a layer, got {cell!r}, {options.scopes!r} "
            f"and {options.joint}"
        )
    if x.dtype not in dtypes or x.dim() != 3 or len(x) == 0 or inputs.h0.dim() != 2:
        raise RuntimeError(
            f"x must be (T, B, I) of {', '.join(map(str, dtypes))} with a step at least, and h0 "
            f"(B, H), got {tuple(x.shape)} of {x.dtype} and {tuple(inputs.h0.shape)}"
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    for name, tensor in zip(Inputs._fields, inputs, strict=True):
        if tensor is None:
            continue
        dtype = x.dtype if name in ("x", "weight_ih", "weight_hh") else wide
        dtype = torch.int64 if name == "sizes" else torch.bool if "mask" in name else dtype
        device = "cpu" if name == "sizes" else x.device.type
        if tensor.dtype != dtype or tensor.device.type != device:
            raise RuntimeError(
                f"{name} must be {dtype} on {device}, got {tensor.dtype} on {tensor.device}"
            )
    check_shapes(inputs, options.gates)
    (T, B), units = x.shape[:2], inputs.h0.size(1)
    for name, tensor, shape in (
        ("sizes", inputs.sizes, (T,)),
        ("h0", inputs.h0, (B, units)),
        ("c0", inputs.c0, (B, units)),
    ):
        if tensor is not None and tensor.shape != shape:
            raise RuntimeError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    for place, mask in zip(PLACES, inputs.masks, strict=True):
        if mask is None:
            continue
        steps, rows, width = mask.shape if mask.dim() == 3 else (0, 0, 0)
        if steps not in (1, T) or rows not in (1, B) or width != units:
            raise RuntimeError(
                f"mask_{place} must have shape {(T, B, units)} with T and B or ones, got "
                f"{tuple(mask.shape)}"
            )
    sizes = inputs.sizes.tolist()
    if sizes[0] != B or sizes[-1] < 0 or sorted(sizes, reverse=True) != sizes:
        raise RuntimeError(f"sizes must begin with all {B} rows and not grow, got {sizes}")
    _check_presence(inputs, options, scopes, sizes)


def _check_presence(
    inputs: Inputs, options: Options, scopes: Sequence[str], sizes: Sequence[int]
) -> None:
    """Refuses a call without what its options ask for.

    Raises:
        RuntimeError: c0, a gamma, the cell's beta or a statistic is absent.
    """
    needed = {"c0": options.has_c, "beta_cell": scopes[2] != "off"}
    for site, scope in zip(("input", "hidden", "cell"), scopes, strict=True):
        needed[f"gamma_{site}"] = scope != "off"
        # a step with too few rows takes the last statistic before it
        rows = sum(sizes) if scope == "sequence" else sizes[0]
        given = scope in ("frame", "sequence") and not 0 <= options.min_rows <= rows
        needed[f"mean_{site}"] = needed[f"var_{site}"] = given
    for name, asked in needed.items():
        if asked and getattr(inputs, name) is None:
            raise RuntimeError(
                f"{name} must be a tensor for {options.cell} with scopes {options.scopes!r} and "
                f"min_rows {options.min_rows}, got None"
            )


def options_of(
    cell: Cell,
    norm: Norm | None,
    min_rows: int | None,
    masks: Mapping[str, Mask] | None = None,
) -> Options:
    """What is not a tensor; ``min_rows`` and ``masks`` as those of ``layer``."""
    active = cell.active_sites(norm)
    batch = isinstance(norm, BatchNorm)

    def scope(site: str) -> str:
        if site not in active:
            return "off"
        if not batch:
            return "row"
        # without a statistic of all frames their terms need not be kept
        return "frame" if min_rows is None else str(getattr(norm, site))

    return Options(
        cell.name,
        ",".join(map(scope, sites_of(active))),
        "joint" in active,
        norm.eps if norm else 1.0,
        -1 if min_rows is None or not (batch and active) else min_rows,
        *[masks[place].scale if masks and place in masks else 1.0 for place in PLACES],
    )


def moments_of(results: Sequence[Tensor]) -> list[Moments]:
    """Mean and variance of the input, the hidden and the cell site."""
    moments = results[MOMENTS]
    return list(zip(moments[::2], moments[1::2], strict=True))


def taken_of(call: LayerCall, results: Sequence[Tensor]) -> dict[str, Moments]:
    """Finds the moments of each site among a forward pass's results, where some were taken."""
    if not isinstance(call.norm, BatchNorm) or call.min_rows is None:
        return {}
    active = call.cell.active_sites(call.norm)
    moments = zip(sites_of(active), moments_of(results), strict=True)
    return {site: taken for site, taken in moments if site in active}
