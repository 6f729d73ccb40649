"""Layers whose populations are small enough to look at."""

import torch
from torch import tensor
from torch.nn.utils.rnn import pack_sequence

import rnnorm
from rnnorm import BatchNorm

INPUT_ONLY = {"recurrent": None, "cell": None}


def layer(**options):
    """An RNN whose input term is its input: statistics of the first column are those of x."""
    options = INPUT_ONLY | {"min_rows": 2} | options
    module = rnnorm.RNN(1, 1, bias=False, norm=BatchNorm(**options))
    with torch.no_grad():
        module.weight_ih_l0.fill_(1.0)
    return module


def feed(module, *columns):
    """A minibatch of ragged sequences of single numbers."""
    module(pack_sequence([tensor(c)[:, None] for c in columns], enforce_sorted=False))
    return module.population_input_l0


def values(buffer):
    return buffer.flatten().tolist()


def trained(**options):
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(**options))
    module(torch.randn(5, 4, 2))
    return module
