"""Normalised recurrent networks for PyTorch."""

from rnnorm import init
from rnnorm.kernels.dispatch import backends, use_backend
from rnnorm.layers.gru import GRU, GRUCell
from rnnorm.layers.lstm import LSTM, LSTMCell
from rnnorm.layers.rnn import RNN, RNNCell
from rnnorm.layers.update_bn import select_horizon, update_bn
from rnnorm.norm.spec import BatchNorm, LayerNorm

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "GRUCell",
    "LSTMCell",
    "LayerNorm",
    "RNNCell",
    "backends",
    "init",
    "select_horizon",
    "update_bn",
    "use_backend",
]
__version__ = "0.1.0"
