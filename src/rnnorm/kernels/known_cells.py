"""The cells that the fused kernels know by name: those of the library, and users' cells."""

from __future__ import annotations

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.indrnn import IndRNN
from rnnorm.cells.ligru import LiGRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN

#: by name in ``Options``, the cells that ``Inputs`` and ``Options`` can describe, those with fewer
#: weights first; ``make_known`` adds others
CELLS: dict[str, tuple[Cell, ...]] = {
    "LSTM": (LSTM(), LSTM("output"), LSTM("all")),
    "GRU": (GRU(),),
    "GRU_BOTH": (GRU("both"),),
    "LiGRU": (LiGRU(),),
    "RNN_TANH": (RNN(),),
    "RNN_RELU": (RNN("relu"),),
    "IndRNN_TANH": (IndRNN("tanh"),),
    "IndRNN_RELU": (IndRNN(),),
}
#: one cell of each name, for what its options do not change
CELL_OF_NAME: dict[str, Cell] = {name: alike[0] for name, alike in CELLS.items()}
#: cells that the package's own build computes
BUILT_IN = tuple([cell for alike in CELLS.values() for cell in alike])
#: beginning of the names of cells that are compiled at run time
OWN = "own-"


def make_known(name: str, cell: Cell) -> None:
    """Make a cell that is compiled at run time known by its name in ``Options``."""
    CELLS[name], CELL_OF_NAME[name] = (cell,), cell


def independent(cell: Cell) -> bool:
    """Tell whether a cell's recurrent weight is a vector: each unit sees of h itself alone."""
    return len(cell.weights(1, cell.heads, False)["weight_hh"]) == 1


def rectified(cell: Cell) -> bool:
    """Tell whether h is the output of a rectifier, or a graph's equations have one."""
    graph = getattr(cell, "graph", None)
    found = getattr(cell, "nonlinearity", None) == "relu"
    return found if graph is None else any([node.name == "relu" for node in graph.nodes])
