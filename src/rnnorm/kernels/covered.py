"""What every fused kernel covers of the cells, norms and modes of autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd import forward_ad

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.norm.spec import Norm

#: cells of fused kernels; those of one name, from fewer weights to more
COVERED = (LSTM(), LSTM("output"), LSTM("all"), GRU(), RNN(), RNN("relu"))
GATES = {cell.name: sum(cell.gates) for cell in COVERED}
# of gates that share a row's statistic
BLOCKS = {cell.name: len(cell.gates) for cell in COVERED}

#: that they take
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def uncovered(
    cell: Cell, norm: Norm | None, dtype: torch.dtype, covered: Sequence[Cell] = COVERED
) -> str:
    """Why a kernel of the cells ``covered`` does not cover a layer, empty if it does."""
    if cell not in covered:
        return f"it has no {cell}"
    if dtype not in DTYPES:
        return f"it has no {dtype}"
    if "carry" in cell.active_sites(norm):
        return "it does not normalise the carried cell"
    if torch._C._are_functorch_transforms_active():
        return "its operators have no torch.func transforms"
    if forward_ad._current_level >= 0:
        return "its operators have no forward-mode derivative"
    return ""
