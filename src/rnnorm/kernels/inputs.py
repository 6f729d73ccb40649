"""The arguments and results of a fused kernel's two passes, as operators have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.call import LayerCall, Mask
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import BatchNorm, Norm

#: the cells that ``Inputs`` and ``Options`` can describe; cells of one name go from fewer weights
#: to more
CELLS = (LSTM(), LSTM("output"), LSTM("all"), GRU(), RNN(), RNN("relu"))
_BY_NAME: Mapping[str, Cell] = {cell.name: cell for cell in CELLS}


class Sites(NamedTuple):
    """One value for each of a kernel's sites; the hidden one is the recurrent or the joint site."""

    input: Any
    hidden: Any
    cell: Any


class Inputs(NamedTuple):
    """The tensors that both passes take: contiguous, of one type, ``sizes`` int64.

    Constants are ``(R, 1, F)`` or ``(R, B, F)``, the last of at most T serving all later steps,
    None where no step can need them. Masks are bool ``(T, B, H)`` with T and B or ones. A tensor
    that the cell or the layer does not have is None.
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
        """The peephole weights of the gates i, f and o."""
        return self.weight_ci, self.weight_cf, self.weight_co

    @property
    def gammas(self) -> Sites:
        """The scale of each site."""
        return Sites(self.gamma_input, self.gamma_hidden, self.gamma_cell)

    @property
    def constants(self) -> Sites:
        """The constant mean and variance of each site."""
        return Sites(
            (self.mean_input, self.var_input),
            (self.mean_hidden, self.var_hidden),
            (self.mean_cell, self.var_cell),
        )

    @property
    def masks(self) -> tuple[Tensor | None, ...]:
        """The masks of recurrent dropout, in the order of ``PLACES``."""
        return self.mask_hidden, self.mask_candidate, self.mask_zoneout_h, self.mask_zoneout_c

    @property
    def leaves(self) -> tuple[Tensor | None, ...]:
        """The inputs that may have gradients, and ``sizes`` among them."""
        return self[:LEAVES]

    @property
    def without_gradients(self) -> tuple[Tensor | None, ...]:
        """The inputs after ``leaves``: constants and masks."""
        return self[LEAVES:]

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """The inputs that ``PARAMETERS`` names."""
        return self[_FIRST_PARAMETER:LEAVES]

    @property
    def differentiable(self) -> bool:
        """Whether autograd must record what is computed from these inputs."""
        return torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in self])


# the gradients of later inputs are not computed
LEAVES = Inputs._fields.index("beta_cell") + 1
_FIRST_PARAMETER = Inputs._fields.index("weight_ih")
#: names of a layer's parameters among the inputs
PARAMETERS = Inputs._fields[_FIRST_PARAMETER:LEAVES]


class Results(NamedTuple):
    """The tensors that a forward pass returns; an absent one has no elements.

    The first three are differentiable. ``taken`` are the moments taken at each site, and
    ``saved`` is for the backward pass.
    """

    output: Tensor
    h_n: Tensor
    c_n: Tensor
    taken_mean_input: Tensor
    taken_var_input: Tensor
    taken_mean_hidden: Tensor
    taken_var_hidden: Tensor
    taken_mean_cell: Tensor
    taken_var_cell: Tensor
    saved_x: Tensor
    saved_h: Tensor
    saved_c: Tensor
    saved_carried: Tensor

    @property
    def differentiable(self) -> tuple[Tensor, Tensor, Tensor]:
        """The results that have gradients."""
        return self.output, self.h_n, self.c_n

    @property
    def without_gradients(self) -> tuple[Tensor, ...]:
        """The results after ``differentiable``: moments and saved tensors."""
        return self[len(DIFFERENTIABLE) :]

    @property
    def moments(self) -> Sites:
        """The mean and variance taken at each site."""
        return Sites(
            (self.taken_mean_input, self.taken_var_input),
            (self.taken_mean_hidden, self.taken_var_hidden),
            (self.taken_mean_cell, self.taken_var_cell),
        )

    @property
    def saved(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tensors that only a backward pass reads."""
        return self.saved_x, self.saved_h, self.saved_c, self.saved_carried


#: names of what a forward pass returns
RESULTS = Results._fields
#: names of the results that have gradients
DIFFERENTIABLE = ("output", "h_n", "c_n")


class Gradients(NamedTuple):
    """The gradients of the leaves among ``Inputs``; an absent one has no elements."""

    x: Tensor
    h0: Tensor
    c0: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    weight_ci: Tensor
    weight_cf: Tensor
    weight_co: Tensor
    gamma_input: Tensor
    gamma_hidden: Tensor
    gamma_cell: Tensor
    beta_cell: Tensor

    @property
    def peepholes(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the peephole weights of the gates i, f and o."""
        return self.weight_ci, self.weight_cf, self.weight_co

    @property
    def gammas(self) -> Sites:
        """The gradient of each site's scale."""
        return Sites(self.gamma_input, self.gamma_hidden, self.gamma_cell)


# of the gates i, f and o
PEEPHOLES = ("weight_ci", "weight_cf", "weight_co")
# where recurrent dropout acts, in the order of the masks
PLACES = ("hidden", "candidate", "zoneout_h", "zoneout_c")
NO_MASKS = (None,) * len(PLACES)


class Options(NamedTuple):
    """The arguments of both passes that are not tensors.

    Args:
        cell: name of the cell.
        scopes: scopes of the input, hidden and cell site, separated by commas: "off" for a site
            that is not normalised, "row" for layer norm.
        joint: whether the hidden site is the joint one.
        eps: added to the variance.
        min_rows: fewest rows that a statistic is taken of, -1 if none is taken.
        scale_hidden: factor of the true numbers of the first mask; the others follow in order.
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
    def by_site(self) -> Sites:
        """The scope of each site."""
        return Sites(*self.scopes.split(","))

    @property
    def scales(self) -> tuple[float, ...]:
        """The factor of each mask, in the order of ``PLACES``."""
        return (
            self.scale_hidden,
            self.scale_candidate,
            self.scale_zoneout_h,
            self.scale_zoneout_c,
        )

    @property
    def gates(self) -> int:
        """The number of gates of the cell."""
        return sum(self.gate_blocks)

    @property
    def gate_blocks(self) -> tuple[int, ...]:
        """The number of gates in each block that has row statistics of its own."""
        return _BY_NAME[self.cell].gates

    @property
    def has_c(self) -> bool:
        """Whether the cell has a state c."""
        return "c" in _BY_NAME[self.cell].states

    @property
    def separate(self) -> bool:
        """Whether a gate reads its input and recurrent term apart, each with its own bias."""
        return "joint" not in _BY_NAME[self.cell].sites

    @property
    def skips(self) -> bool:
        """Whether h passes a step without W_h, beside the recurrent product."""
        return self.gates > 1 and not self.has_c

    @property
    def rectified(self) -> bool:
        """Whether h is a rectifier's, which has no upper bound."""
        return getattr(_BY_NAME[self.cell], "nonlinearity", None) == "relu"


def sites_of(active: Sequence[str]) -> tuple[str, str, str]:
    """Return the names of the kernel's input, hidden and cell site, given the normalised ones."""
    return "input", "joint" if "joint" in active else "recurrent", "cell"


def inputs_of(call: LayerCall, *, narrow: torch.dtype, wide: torch.dtype) -> Inputs:
    """Gather the tensors of a call: x and the matrices ``narrow``, all others ``wide``.

    Raises:
        RuntimeError: if a parameter has another shape than the layer's.
    """

    def ready(tensor: Tensor | None, dtype: torch.dtype = wide) -> Tensor | None:
        if tensor is None or (tensor.dtype == dtype and tensor.is_contiguous()):
            return tensor
        return tensor.to(dtype).contiguous()

    x, batch_sizes, weights = call.x, call.batch_sizes, call.weights
    h0, *c0 = call.state
    if batch_sizes is None:
        batch_sizes = torch.full((x.size(0),), x.size(1), dtype=torch.int64, device="cpu")
    sites, units = sites_of(call.cell.active_sites(call.norm)), h0.size(1)
    statistics = [m for site in sites for m in call.constants.get(site, (None, None))]
    dropped = [call.masks.get(place) if call.masks else None for place in PLACES]
    inputs = Inputs._make(
        [
            ready(x, narrow),
            batch_sizes.contiguous(),
            ready(h0),
            ready(c0[0]) if c0 else None,
            ready(weights.weight_ih, narrow),
            ready(weights.weight_hh, narrow),
            ready(weights.bias_ih),
            ready(weights.bias_hh),
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
    """Refuse parameters and statistics beyond whose end the kernel would read.

    Raises:
        RuntimeError: if one has another shape than in a layer of ``gates`` gates with the units of
            ``h0``.
    """
    (T, B), units = inputs.x.shape[:2], inputs.h0.size(1)
    gates *= units
    matrices = ((gates, inputs.x.size(2)), (gates, units))
    row, unit = (gates,), (units,)
    shapes = (*matrices, row, row, unit, unit, unit, row, row, unit, unit)
    for name, given, shape in zip(PARAMETERS, inputs.parameters, shapes, strict=True):
        if given is not None and given.shape != shape:
            raise RuntimeError(f"{name} must have shape {shape}, got {tuple(given.shape)}")
    if torch.compiler.is_compiling():
        # sizes may be symbols, which a comparison would turn into constants
        return
    for (mean, var), width in zip(inputs.constants, (gates, gates, units), strict=True):
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
    """Refuse arguments that only a direct call of an operator can have.

    Such a call comes from an exported program that was changed by hand, or from hooks on the
    tensors that a compiled program saves.

    Args:
        inputs: contiguous tensors, not checked otherwise.
        options: options, not checked.
        dtypes: dtypes of x that the kernel takes.

    Raises:
        RuntimeError: if a tensor has another dtype, device or shape than the kernel reads, the
            numbers in ``sizes`` are not those of a packed batch, an option is unknown, or a tensor
            that the options ask for is absent.
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
    """Refuse a call without a tensor that its options ask for.

    Raises:
        RuntimeError: if c0, a gamma, the cell's beta or a statistic is absent.
    """
    needed = {"c0": options.has_c, "beta_cell": scopes[2] != "off"}
    for site, scope in zip(Sites._fields, scopes, strict=True):
        needed[f"gamma_{site}"] = scope != "off"
        # a step with too few rows is normalised by the last statistic before it
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
    """Return the options of a layer; ``min_rows`` and ``masks`` are those of ``LayerCall``."""
    active = cell.active_sites(norm)
    batch = isinstance(norm, BatchNorm)

    def scope(site: str) -> str:
        if site not in active:
            return "off"
        if not batch:
            return "row"
        # constants serve step by step, so the terms of all frames need not be kept
        return "frame" if min_rows is None else str(getattr(norm, site))

    return Options(
        cell.name,
        ",".join(map(scope, sites_of(active))),
        "joint" in active,
        norm.eps if norm else 1.0,
        -1 if min_rows is None or not (batch and active) else min_rows,
        *[masks[place].scale if masks and place in masks else 1.0 for place in PLACES],
    )


def taken_of(call: LayerCall, results: Results) -> dict[str, Moments]:
    """Return the moments that a forward pass took, by site."""
    if not isinstance(call.norm, BatchNorm) or call.min_rows is None:
        return {}
    active = call.cell.active_sites(call.norm)
    moments = zip(sites_of(active), results.moments, strict=True)
    return {site: taken for site, taken in moments if site in active}
