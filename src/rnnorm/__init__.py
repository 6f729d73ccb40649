"""Normalised recurrent networks for PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnorm import convert, export, init
    from rnnorm.cells.cell import Cell
    from rnnorm.kernels.dispatch import backends, use_backend
    from rnnorm.layers.explain import explain
    from rnnorm.layers.gru import GRU, GRUCell
    from rnnorm.layers.hmlstm import HMLSTM
    from rnnorm.layers.lstm import LSTM, LSTMCell
    from rnnorm.layers.more_cells import MIRNN, ClockworkRNN, IndRNN, LiGRU
    from rnnorm.layers.norm_stabilizer import norm_stabilizer
    from rnnorm.layers.recurrent import Recurrent
    from rnnorm.layers.recurrent_dropout import CellDropout, SequenceDropout, Zoneout
    from rnnorm.layers.rnn import RNN, RNNCell
    from rnnorm.layers.stateful import Stateful
    from rnnorm.model.fold import fold
    from rnnorm.model.freeze import freeze
    from rnnorm.model.select_horizon import select_horizon
    from rnnorm.model.synchronize import average_population, synchronize
    from rnnorm.model.update_bn import update_bn
    from rnnorm.norm.spec import BatchNorm, LayerNorm, RMSNorm

__all__ = [
    "GRU",
    "HMLSTM",
    "LSTM",
    "MIRNN",
    "RNN",
    "BatchNorm",
    "Cell",
    "CellDropout",
    "ClockworkRNN",
    "GRUCell",
    "IndRNN",
    "LSTMCell",
    "LayerNorm",
    "LiGRU",
    "RMSNorm",
    "RNNCell",
    "Recurrent",
    "SequenceDropout",
    "Stateful",
    "Zoneout",
    "average_population",
    "backends",
    "convert",
    "explain",
    "export",
    "fold",
    "freeze",
    "init",
    "norm_stabilizer",
    "select_horizon",
    "synchronize",
    "update_bn",
    "use_backend",
]
__version__ = "0.1.0"

_HOMES = {
    "rnnorm.convert": (),
    "rnnorm.export": (),
    "rnnorm.init": (),
    "rnnorm.cells.cell": ("Cell",),
    "rnnorm.kernels.dispatch": ("backends", "use_backend"),
    "rnnorm.model.fold": ("fold",),
    "rnnorm.model.freeze": ("freeze",),
    "rnnorm.layers.explain": ("explain",),
    "rnnorm.layers.gru": ("GRU", "GRUCell"),
    "rnnorm.layers.hmlstm": ("HMLSTM",),
    "rnnorm.layers.lstm": ("LSTM", "LSTMCell"),
    "rnnorm.layers.more_cells": ("ClockworkRNN", "IndRNN", "LiGRU", "MIRNN"),
    "rnnorm.layers.norm_stabilizer": ("norm_stabilizer",),
    "rnnorm.layers.recurrent": ("Recurrent",),
    "rnnorm.layers.recurrent_dropout": ("CellDropout", "SequenceDropout", "Zoneout"),
    "rnnorm.layers.rnn": ("RNN", "RNNCell"),
    "rnnorm.layers.stateful": ("Stateful",),
    "rnnorm.model.select_horizon": ("select_horizon",),
    "rnnorm.model.synchronize": ("average_population", "synchronize"),
    "rnnorm.model.update_bn": ("update_bn",),
    "rnnorm.norm.spec": ("BatchNorm", "LayerNorm", "RMSNorm"),
}


def __getattr__(name: str) -> Any:
    """Import everything when the first name is asked for: the help of ``rnnorm`` needs no torch."""
    # dunder names are asked for by the import system itself
    if not name.startswith("__"):
        for home, names in _HOMES.items():
            module = import_module(home)
            globals().update({each: getattr(module, each) for each in names})
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'rnnorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
