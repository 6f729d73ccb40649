"""The tensors and options of a fused kernel's two passes, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnorm.kernels.known_cells import CELL_OF_NAME, OWN, independent, rectified


def joined(states: Sequence[Tensor]) -> Tensor | None:
    """Return the states beside h as ``Inputs.c0``: the one state, several stacked, or None."""
    return torch.stack(list(states)) if len(states) > 1 else states[0] if states else None


def separated(states: Tensor | None, dimensions: int) -> tuple[Tensor, ...]:
    """Return the states, of ``dimensions`` each, that ``joined`` has put together."""
    if states is None:
        return ()
    if states.dim() == dimensions:
        return (states,)
    # not unbind, whose views no caller could change in place
    return tuple([states[k] for k in range(len(states))])


class Sites(NamedTuple):
    """One value for each of a kernel's sites; the hidden one is the recurrent or the joint site."""

    input: Any
    hidden: Any
    cell: Any


class Inputs(NamedTuple):
    """The contiguous tensors that both passes take, None where the cell or the layer has none.

    x and the matrices have the dtype of the products, other numbers are float32 or wider, and
    ``sizes`` is int64 on the CPU. ``c0`` is the state beside h ``(B, H)`` or, of
    several, all of them ``(states, B, H)``; c_n, all_c and their gradients are alike. Constants are
    ``(R, 1, F)`` or ``(R, B, F)``, the last of at most T serving all later steps, None where no
    step can need them. Masks are bool ``(T, B, H)``, where T and B may be 1; ``reset`` is bool
    ``(T, B)``. With ``weight_hr`` ``(H_out, H)`` h, the output and the masks of h have H_out units.
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
    weight_hr: Tensor | None
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
    reset: Tensor | None

    @property
    def hidden_size(self) -> int:
        """The number H of the cell's units, more than h has where it is projected."""
        return self.h0.shape[-1] if self.weight_hr is None else self.weight_hr.shape[-1]

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
        """The inputs after ``leaves``: constants, masks and ``reset``."""
        return self[LEAVES:]

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """The inputs that ``PARAMETERS`` names."""
        return self[_FIRST_PARAMETER:LEAVES]


# the gradients of later inputs are not computed
LEAVES = Inputs._fields.index("weight_hr") + 1
_FIRST_PARAMETER = Inputs._fields.index("weight_ih")
#: names of a layer's parameters among the inputs
PARAMETERS = Inputs._fields[_FIRST_PARAMETER:LEAVES]


class Results(NamedTuple):
    """The tensors that a forward pass returns; an absent one has no elements.

    The first four have gradients; ``all_c`` is c after every step, where it is asked for.
    ``taken_…`` are the moments taken at each site, and ``saved_…`` are for the backward pass.
    """

    output: Tensor
    h_n: Tensor
    c_n: Tensor
    all_c: Tensor
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
    saved_made: Tensor

    @property
    def without_gradients(self) -> tuple[Tensor, ...]:
        """The results after those that ``DIFFERENTIABLE`` names: moments and saved tensors."""
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
        """The tensors that only a backward pass reads, without ``saved_made``."""
        return self.saved_x, self.saved_h, self.saved_c, self.saved_carried


#: names of what a forward pass returns
RESULTS = Results._fields
#: names of the results that have gradients
DIFFERENTIABLE = ("output", "h_n", "c_n", "all_c")


class Gradients(NamedTuple):
    """The gradients of ``Inputs.leaves`` without ``sizes``; an absent one has no elements."""

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
    weight_hr: Tensor


# weights of the gates i, f and o; the weights by unit of any other cell take their places, all
# from the third on the last
PEEPHOLES = ("weight_ci", "weight_cf", "weight_co")
# places where recurrent dropout acts, in the order of the masks
PLACES = ("hidden", "candidate", "zoneout_h", "zoneout_c")
NO_MASKS = (None,) * len(PLACES)
NO_SCALES: Mapping[str, float] = dict.fromkeys([f"scale_{place}" for place in PLACES], 1.0)


# layer norm and RMS norm over the cell's blocks of gates, over all gates of a term, or over each
_BY_ROW = [kind + over for kind in ("row", "rms") for over in ("", "-term", "-gate")]
#: what a site may be: not normalised, by statistics over rows, or by row
SCOPES = ("off", "frame", "sequence", *_BY_ROW)


class Options(NamedTuple):
    """The arguments of both passes that are not tensors.

    Args:
        cell: name of the cell.
        scopes: scopes of the input, hidden and cell site, separated by commas; ``SCOPES`` lists
            them.
        joint: whether the hidden site is the joint one.
        carry: whether the cell site is the carry one: the next step reads the normalised c.
        wants_all_c: whether c after every step is returned.
        clears: whether the output must be zero where padded; a kernel may clear it in any case.
        eps_input: added to the variance of the input site; the other sites' numbers follow.
        min_rows: fewest rows that a statistic is taken of, -1 if none is taken.
        scale_hidden: factor of the mask of h; those of the other masks follow, as ``PLACES``.
    """

    cell: str
    scopes: str
    joint: bool
    carry: bool
    wants_all_c: bool
    clears: bool
    eps_input: float
    eps_hidden: float
    eps_cell: float
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
    def eps(self) -> Sites:
        """The epsilon of each site, which is added to its variance."""
        return Sites(self.eps_input, self.eps_hidden, self.eps_cell)

    @property
    def scales(self) -> tuple[float, ...]:
        """The factor of each mask, in the order of ``PLACES``."""
        return self.scale_hidden, self.scale_candidate, self.scale_zoneout_h, self.scale_zoneout_c

    @property
    def gates(self) -> int:
        """The number of gates of the cell."""
        return sum(self.gate_blocks)

    @property
    def gate_blocks(self) -> tuple[int, ...]:
        """The number of gates in each block of the cell; a norm by row has statistics of each."""
        return CELL_OF_NAME[self.cell].gates

    @property
    def first_gates(self) -> int:
        """The number of gates of the first of two recurrent products, or of the only one."""
        graph = getattr(CELL_OF_NAME[self.cell], "graph", None)
        return self.gates if graph is None else int(graph.first_gates)

    def blocks_of(self, scope: str) -> int:
        """Return the number of statistics that each row of a term has."""
        over = scope.partition("-")[2]
        return {"": len(self.gate_blocks), "term": 1, "gate": self.gates}[over]

    @property
    def more_states(self) -> int:
        """The number of states beside h."""
        return len(CELL_OF_NAME[self.cell].states) - 1

    @property
    def has_c(self) -> bool:
        """Tell whether the cell has states beside h, the first of which is c."""
        return self.more_states > 0

    @property
    def several(self) -> tuple[int, ...]:
        """The number of states beside h as a first dimension of c0, none if there is but one."""
        return (self.more_states,) if self.more_states > 1 else ()

    @property
    def heads(self) -> int | None:
        """The number of heads whose units read each other's h, None if W_h is a vector."""
        cell = CELL_OF_NAME[self.cell]
        return None if independent(cell) else cell.heads

    @property
    def separate(self) -> bool:
        """Tell whether a gate reads its input and recurrent term apart, each with its own bias."""
        return "joint" not in CELL_OF_NAME[self.cell].sites

    @property
    def own(self) -> bool:
        """Tell whether the cell was compiled at run time."""
        return self.cell.startswith(OWN)

    @property
    def skips(self) -> bool:
        """Tell whether a step carries h over beside the recurrent product, as a GRU does."""
        graph = getattr(CELL_OF_NAME[self.cell], "graph", None)
        return self.gates > 1 and not self.has_c if graph is None else graph.skips

    @property
    def rectified(self) -> bool:
        """Tell whether h is the output of a rectifier, which has no upper bound."""
        return rectified(CELL_OF_NAME[self.cell])
