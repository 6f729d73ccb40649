"""The kernels in CUDA C++ as a backend of their own: what they compute, and a layer run by them.

The loops in ``kernels/triton`` give these kernels the calls at which they were measured to be
faster. As a backend they run every call that they can, also of layers that Triton's do not cover,
and of users' cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.kernels import gpu, own_cell
from rnnorm.kernels.call import Coverage, LayerCall, LayerResult, Request
from rnnorm.kernels.cuda import own_frame
from rnnorm.kernels.cuda.passes import why_not_multiplied
from rnnorm.kernels.inputs import PLACES
from rnnorm.kernels.known_cells import BUILT_IN, independent, rectified
from rnnorm.norm.spec import SITES, BatchNorm, LayerNorm, RMSNorm

#: the layers that the kernels compute, beside those of users' cells
COVERAGE = Coverage(
    [cell for cell in BUILT_IN if not independent(cell)],
    dict.fromkeys((BatchNorm, LayerNorm, RMSNorm), SITES),
    PLACES,
    over=(None, "term", "gate"),
    apart=("input",),
)
#: why only ``use_backend`` runs the kernels by themselves
UNPROVEN = "its kernels have not run such layers on a GPU yet: use_backend('cuda') runs them"


def refuses(request: Request) -> str:
    """Say why the kernels do not compute a layer, empty if they do."""
    cell = request.cell
    if why := gpu.unfit(request):
        return why
    if own_cell.built_in(cell):
        return COVERAGE.refuses(request) or why_not_multiplied(
            request.dtype, rectified=rectified(cell)
        )
    return COVERAGE.refuses_beside_cell(request) or own_cell.refuses(request, own_frame)


def layer(call: LayerCall) -> LayerResult:
    """Run a layer as ``reference.layer`` does; its cell does not read ``t``.

    Raises:
        UncoveredError: if the kernels do not run on the GPU, or not so many rows or units.
    """
    if own_cell.built_in(call.cell):
        return gpu.run(call, cuda=True)
    call = _as_graph_call(call)
    result = gpu.run(call, cuda=True)
    return result._replace(taken=own_cell.moments_by_site(call.cell, result.taken))


def _as_graph_call(call: LayerCall) -> LayerCall:
    """Return the call of a user's cell as one of its graph, whose heads are one matrix."""
    call = own_cell.as_graph_call(call)
    heads = call.cell.heads
    if heads == 1:
        return call
    weights = call.weights._replace(weight_hh=_whole(call.weights.weight_hh, heads))
    return call._replace(cell=own_frame.without_heads(call.cell), weights=weights)


def _whole(weight: Tensor, heads: int) -> Tensor:
    """Return the matrix ``(gates * H, H)`` of one ``(gates * H, H / heads)`` whose heads are apart.

    A unit has zeros for the h of other heads.
    """
    units = weight.size(1)
    parts = weight.view(-1, heads, units, 1, units)
    own = torch.eye(heads, dtype=torch.bool, device=weight.device).view(heads, 1, heads, 1)
    return torch.where(own, parts, 0.0).reshape(-1, heads * units)
