"""The kernels in CUDA C++ as a backend of their own: what they compute, and a layer run by them.

The loops in ``kernels/triton`` give these kernels the calls at which they were measured to be
faster. As a backend they run every call that they can, also of layers that Triton's do not cover.
"""

from __future__ import annotations

from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.call import Coverage, LayerCall, LayerResult, Request
from rnnorm.kernels.cuda.passes import why_not
from rnnorm.kernels.inputs import PLACES
from rnnorm.kernels.triton import layer as triton
from rnnorm.norm.spec import BatchNorm, LayerNorm, RMSNorm

_SITES = ("input", "recurrent", "joint", "cell")
#: the layers that the kernels compute
COVERAGE = Coverage(
    (LSTM(), LSTM("output"), LSTM("all"), GRU(), RNN(), RNN("relu")),
    dict.fromkeys((BatchNorm, LayerNorm, RMSNorm), _SITES),
    PLACES,
    over=(None, "term", "gate"),
)
#: why only ``use_backend`` runs the kernels by themselves
UNPROVEN = "its kernels have not run such layers on a GPU yet: use_backend('cuda') runs them"


def refuses(request: Request) -> str:
    """Say why the kernels do not compute a layer, empty if they do."""
    if why := triton.unfit(request) or COVERAGE.refuses(request):
        return why
    rectified = getattr(request.cell, "nonlinearity", None) == "relu"
    return why_not(request.dtype, rectified=rectified)


def layer(call: LayerCall) -> LayerResult:
    """Run a layer as ``reference.layer`` does; these cells do not read ``step``.

    Raises:
        UncoveredError: if the kernels do not run on the GPU, or not so many rows or units.
    """
    # importing it imports Triton
    from rnnorm.kernels.triton.operators import CUDA_PASSES

    return triton.run(CUDA_PASSES, call)
