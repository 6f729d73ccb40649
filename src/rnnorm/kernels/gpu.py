"""Functions for layers on a GPU that the kernels of ``triton/`` and of ``cuda/`` share."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.call import LayerCall, LayerResult, Request, listed
from rnnorm.kernels.call_inputs import inputs_of, options_of, taken_of
from rnnorm.kernels.inputs import separated
from rnnorm.tracing import jit_tracing

#: cells whose kernels have run on a GPU
PROVEN = (LSTM(), GRU(), RNN(), RNN("relu"))


def proven(cell: Cell) -> bool:
    """Tell whether the kernels of a cell have run on a GPU."""
    return listed(cell, PROVEN)


def interpreted() -> bool:
    """Tell whether Triton interprets its kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def unfit(request: Request) -> str:
    """Say why no kernel for GPUs runs a call, whatever its cell and norm, empty if one may."""
    if request.device.type != ("cpu" if interpreted() else "cuda"):
        where = "on the CPU with TRITON_INTERPRET=1" if interpreted() else "on a GPU"
        return f"it runs {where}, not on {request.device.type}"
    if request.synchronized:
        return "it takes no statistics over the rows of several processes"
    if request.exported:
        return "it is not exported"
    if request.compiled and request.states and len(request.cell.states) > 1:
        # the reference computes their gradient
        return "it returns no states of single steps in a compiled graph"
    if jit_tracing():
        return "what loads a trace would not find its operators"
    return ""


def run(call: LayerCall, *, cuda: bool) -> LayerResult:
    """Run a layer by the loops of ``triton/``.

    Args:
        call: the call of a cell that has a name in ``Options``.
        cuda: whether the kernels of ``cuda/`` run all steps.
    """
    # importing it imports Triton
    from rnnorm.kernels.triton.operators import CUDA_PASSES, PASSES

    passes = CUDA_PASSES if cuda else PASSES
    wide = torch.promote_types(call.x.dtype, torch.float32)
    options = options_of(call.cell, call.norm, call.min_rows, call.masks)
    options = options._replace(wants_all_c=call.all_states and options.has_c)
    results = passes(inputs_of(call, narrow=call.x.dtype, wide=wide), options)
    last = results.h_n, *separated(results.c_n if options.has_c else None, 2)
    state = tuple(r.to(s.dtype) for r, s in zip(last, call.state, strict=True))
    states: tuple[Tensor, ...] = ()
    if options.wants_all_c:
        every = results.output, *separated(results.all_c, 3)
        states = tuple(r.to(s.dtype) for r, s in zip(every, call.state, strict=True))
    return LayerResult(results.output, state, taken_of(call, results), states)
