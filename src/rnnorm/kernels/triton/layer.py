"""The Triton kernels, called as the reference is, and what they compute."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.call import Coverage, LayerCall, LayerResult, Request
from rnnorm.kernels.inputs import inputs_of, options_of, taken_of
from rnnorm.tracing import jit_tracing

_LEAST = (3, 6)
# compute capability of the oldest GPUs that they were compiled for
_OLDEST = (8, 0)


def _unavailable() -> str:
    if not find_spec("triton"):
        return "Triton is not installed: pip install triton"
    # a build of torch's own may have another name
    with suppress(PackageNotFoundError):
        found = version("triton")
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < _LEAST:
            least = ".".join(map(str, _LEAST))
            return f"it needs Triton {least}, installed is {found}: pip install 'triton>={least}'"
    return ""


#: why they cannot run here: earlier versions of Triton were not tried
UNAVAILABLE = _unavailable()
#: what they compute
COVERAGE = Coverage((LSTM(), GRU(), RNN(), RNN("relu")))


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def unproven(device: torch.device) -> str:
    """Why they run on a device only where they are named, empty if they are tried unasked."""
    if _interpreted():
        return "an interpreter is slower"
    if (known := _broken.get(device)) is not None:
        return known
    if torch.version.hip:
        return "it was never run on a GPU of AMD's"
    found = torch.cuda.get_device_capability(device)
    if found < _OLDEST:
        least, has = (".".join(map(str, each)) for each in (_OLDEST, found))
        return f"it was compiled for GPUs of compute capability {least} and above, this has {has}"
    # what a capture does not permit says nothing of the next call
    if torch.cuda.is_current_stream_capturing():
        return ""
    return _broken.setdefault(device, _launch(device))


# by device, empty where Triton runs
_broken: dict[torch.device, str] = {}


def _launch(device: torch.device) -> str:
    """Why Triton does not run on a device, as a first launch shows."""
    try:
        # which imports Triton
        from rnnorm.kernels.triton.probe import launch

        launch(device)
        return ""
    except torch.OutOfMemoryError:
        raise
    # a library, a compiler, a header or a driver that is missing have nothing in common
    except Exception as raised:
        error = f"{type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}"
    warnings.warn(
        f"Triton does not run on {device}, so normalised layers are loops over time in plain "
        f"PyTorch there, which is slower: {error}",
        RuntimeWarning,
        stacklevel=2,
    )
    return f"Triton does not run here: {error}"


def refuses(request: Request) -> str:
    """Says why the kernels do not compute a layer, empty if they do."""
    interpreted = _interpreted()
    if request.device.type != ("cpu" if interpreted else "cuda"):
        where = "on the CPU with TRITON_INTERPRET=1" if interpreted else "on a GPU"
        return f"it runs {where}, not on {request.device.type}"
    if request.synchronized:
        return "it takes no statistics over the rows of several processes"
    if request.exported:
        return "it is not exported"
    if jit_tracing():
        return "what loads a trace would not find its operators"
    return COVERAGE.refuses(request)


def layer(call: LayerCall) -> LayerResult:
    """As ``reference.layer``, without masks; no cell here asks for ``step``."""
    # which imports Triton
    from rnnorm.kernels.triton.operators import PASSES

    wide = torch.promote_types(call.x.dtype, torch.float32)
    options = options_of(call.cell, call.norm, call.min_rows)
    results = PASSES(inputs_of(call, narrow=call.x.dtype, wide=wide), options)
    output, *last = results.differentiable
    state = tuple(r.to(s.dtype) for r, s in zip(last, call.state, strict=False))
    return LayerResult(output, state, taken_of(call, results))
