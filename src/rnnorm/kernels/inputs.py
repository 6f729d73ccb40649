"""What the two passes of a fused kernel take, as an operator's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.mask import Mask
from rnnorm.norm.spec import BatchNorm, Norm

#: cells of fused kernels; those of one name, from fewer weights to more
COVERED = (LSTM(), LSTM("output"), LSTM("all"), GRU(), RNN(), RNN("relu"))
GATES = {cell.name: sum(cell.gates) for cell in COVERED}
# of gates that share a row's statistic
BLOCKS = {cell.name: len(cell.gates) for cell in COVERED}


class Inputs(NamedTuple):
    """The tensors that both passes take: contiguous, of one type, ``sizes`` int64.

    The hidden site is the recurrent or the joint one. Constants are ``(T, 1, F)``,
    ``(T, B, F)`` or ``(1, 1, F)``, None where no step can need them. Masks are bool ``(T, B, H)``
    with T and B or ones. What the cell or the layer does not have is None.
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


# the first inputs may have gradients, but for the sizes
LEAVES = 15
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


def sites_of(active: Sequence[str]) -> tuple[str, str, str]:
    """The kernel's three sites by name, where some are normalised."""
    return "input", "joint" if "joint" in active else "recurrent", "cell"


def options_of(
    cell: Cell,
    norm: Norm | None,
    min_rows: int | None,
    dropped: Sequence[Mask | None] = NO_MASKS,
) -> Options:
    """What is not a tensor; ``min_rows`` as that of ``layer``, and a mask for each place."""
    active = cell.active_sites(norm)
    batch = isinstance(norm, BatchNorm)
    scopes = [
        (getattr(norm, site) if batch else "row") if site in active else "off"
        for site in sites_of(active)
    ]
    return Options(
        cell.name,
        ",".join(scopes),
        "joint" in active,
        norm.eps if norm else 1.0,
        -1 if min_rows is None or not (batch and active) else min_rows,
        *[1.0 if mask is None else mask.scale for mask in dropped],
    )
