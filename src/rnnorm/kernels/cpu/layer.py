"""The CPU kernel, called as the reference is, and the layers that it computes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rnnorm.kernels import own_cell
from rnnorm.kernels.call import Coverage, LayerCall, LayerResult, Request
from rnnorm.kernels.call_inputs import inputs_of, options_of, taken_of
from rnnorm.kernels.cpu import own_frame
from rnnorm.kernels.cpu.c_struct import COMPUTED, MULTIPLIED
from rnnorm.kernels.cpu.forward import NARROW_PASSES, PASSES
from rnnorm.kernels.inputs import PLACES, separated
from rnnorm.kernels.known_cells import BUILT_IN
from rnnorm.norm.spec import SITES, BatchNorm, LayerNorm, RMSNorm

#: the layers that the kernel computes
COVERAGE = Coverage(
    BUILT_IN,
    dict.fromkeys((BatchNorm, LayerNorm, RMSNorm), SITES),
    PLACES,
    over=(None, "term", "gate"),
    projected=True,
    apart=SITES,
)
# a user's cell is compiled without a projection
_OF_OWN_CELLS = replace(COVERAGE, projected=False)


def refuses(request: Request) -> str:
    """Say why the kernel does not compute a layer, empty if it does."""
    if request.device.type != "cpu":
        return f"it runs on the CPU, not on {request.device.type}"
    if request.exported == "onnx":
        return "onnx has no such operator"
    if own_cell.built_in(request.cell):
        return COVERAGE.refuses(request)
    return _OF_OWN_CELLS.refuses_beside_cell(request) or own_cell.refuses(request, own_frame)


def layer(call: LayerCall) -> LayerResult:
    """Run a layer as ``reference.layer`` does, or with ``rows`` as ``synchronized.layer`` does.

    A layer in bfloat16 multiplies in bfloat16, with float32 sums, and computes all else in float32.
    A layer in float16 computes all in float32. The kernel runs no cell whose step reads ``t``.

    Raises:
        MemoryError: if scratch memory could not be allocated.
        RuntimeError: if a parameter has another shape than the layer's, or another rank is missing
            (raised by torch.distributed).
    """
    if not own_cell.built_in(call.cell):
        call = own_cell.as_graph_call(call)
    wide = call.x.dtype if call.x.dtype in COMPUTED else torch.float32
    narrow = call.x.dtype if call.x.dtype in MULTIPLIED else wide
    options = options_of(call.cell, call.norm, call.min_rows, call.masks)
    options = options._replace(wants_all_c=call.all_states and options.has_c, clears=call.clears)
    # states after every step are in a wider dtype than the output
    passes = PASSES if call.all_states or narrow is wide else NARROW_PASSES
    results = passes(inputs_of(call, narrow=narrow, wide=wide), options, call.rows)
    final, every = (results.c_n, results.all_c) if options.has_c else (None, None)
    output, *state = [
        result if result.dtype == like.dtype else result.to(like.dtype)
        for result, like in zip(
            (results.output, results.h_n, *separated(final, 2)),
            (call.x, *call.state),
            strict=True,
        )
    ]
    states: tuple[Tensor, ...] = ()
    if call.all_states:
        found = (output, *separated(every, 3))
        states = tuple([s.to(like.dtype) for s, like in zip(found, call.state, strict=True)])
    taken = own_cell.moments_by_site(call.cell, taken_of(call, results))
    return LayerResult(output, tuple(state), taken, states)
