"""The Triton kernels, called as the reference is, and the layers that they compute."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from torch import Tensor

from rnnorm.cells.gru import GRU
from rnnorm.cells.indrnn import IndRNN
from rnnorm.cells.ligru import LiGRU
from rnnorm.kernels import gpu
from rnnorm.kernels.call import Coverage, LayerCall, LayerResult, Request
from rnnorm.kernels.known_cells import independent
from rnnorm.norm import population
from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population
from rnnorm.norm.spec import BatchNorm, LayerNorm
from rnnorm.norm.update import update as update_all
from rnnorm.tracing import steps_may_vary, unobserved

_LEAST = (3, 6)
# compute capability of the oldest GPUs that the kernels were compiled for
_OLDEST = (8, 0)


def _unavailable() -> str:
    """Say why the kernels cannot run here, empty if they can."""
    if not find_spec("triton"):
        return "Triton is not installed: pip install triton"
    # torch may bring a build of Triton under another name
    with suppress(PackageNotFoundError):
        found = version("triton")
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < _LEAST:
            least = ".".join(map(str, _LEAST))
            return f"it needs Triton {least}, installed is {found}: pip install 'triton>={least}'"
    return ""


#: why the kernels cannot run here; earlier versions of Triton were not tried
UNAVAILABLE = _unavailable()
#: the layers that the kernels compute
COVERAGE = Coverage(
    (*gpu.PROVEN, GRU("both"), LiGRU(), IndRNN("tanh"), IndRNN()),
    {
        BatchNorm: ("input", "recurrent", "joint", "cell"),
        LayerNorm: ("input", "recurrent", "cell"),
    },
    projected=True,
    apart=("input",),
)


def unasked(request: Request) -> str:
    """Say why only ``use_backend`` runs the kernels for a request, empty if they run unasked."""
    new: object = None
    if not gpu.proven(request.cell):
        new = request.cell
    elif request.projected:
        new = "proj_size"
    elif len({*map(id, request.cell.norms(request.norm).values())}) > 1:
        new = "a spec for each site"
    if new is None:
        return unproven(request.device)
    return f"its kernels have not run {new} on a GPU yet: use_backend('triton') runs them"


def unproven(device: torch.device) -> str:
    """Say why only ``use_backend`` runs the kernels on a device, empty if they run unasked."""
    if gpu.interpreted():
        return "an interpreter is slower"
    if (known := _broken.get(device)) is not None:
        return known
    if torch.version.hip:
        return "it was never run on an AMD GPU"
    found = torch.cuda.get_device_capability(device)
    if found < _OLDEST:
        least, has = (".".join(map(str, each)) for each in (_OLDEST, found))
        return f"it was compiled for GPUs of compute capability {least} and above, this has {has}"
    # a launch that a capture forbids says nothing about later calls
    if torch.cuda.is_current_stream_capturing():
        return ""
    return _broken.setdefault(device, _launch(device))


# why Triton does not run, by device; empty where it runs
_broken: dict[torch.device, str] = {}


def _launch(device: torch.device) -> str:
    """Launch a kernel on a device; say why it does not run, empty if it does."""
    try:
        # importing it imports Triton
        from rnnorm.kernels.triton.probe import launch

        launch(device)
        return ""
    except torch.OutOfMemoryError:
        raise
    # a missing library, compiler, header and driver raise different errors
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
    """Say why the kernels do not compute a layer, empty if they do."""
    if why := gpu.unfit(request) or COVERAGE.refuses(request):
        return why
    if independent(request.cell) and request.dtype.itemsize < 4:
        # h would be rounded at every step, and errors do not fade where a weight is near 1
        return f"it computes {request.cell.name} in float32 and float64 alone"
    return ""


def look_up(
    populations: Mapping[str, Population], first: int | Tensor, steps: int
) -> dict[str, Moments]:
    """Look up the statistics of a layer's populations, in one launch unless it is traced."""
    if steps_may_vary(steps):
        return population.look_up(populations, first, steps)
    copied = {site: each for site, each in populations.items() if _has_rows(each)}
    buffers = [buffer for each in copied.values() for buffer in each.rows_of(0, len(each))]
    ages = None
    if copied and isinstance(first, Tensor):
        ages = first.to(buffers[0].device).contiguous()
    frames = steps if ages is None else steps * len(ages)
    one_launch = frames and unobserved([*buffers, ages]) and all(map(_is_readable, buffers))
    if not copied or not one_launch or len({buffer.device for buffer in buffers}) > 1:
        return population.look_up(populations, first, steps)
    # importing it imports Triton
    from rnnorm.kernels.triton import look_up as kernel

    others = {site: each for site, each in populations.items() if site not in copied}
    found = population.look_up(others, first, steps)
    return found | kernel.look_up(copied, first if ages is None else ages, steps)


def update(
    populations: Mapping[str, Population],
    batch: Mapping[str, Moments],
    counts: Mapping[str, Tensor | int],
    step: int,
) -> None:
    """Update a layer's populations by a minibatch, in one launch if they are alike."""
    own = {site: populations[site] for site in batch if _has_rows(populations[site])}
    alike = {(each.momentum, len(each)) for each in own.values()}
    tensors = [m for site in own for m in batch[site]]
    tensors += [buffer for each in own.values() for buffer in each.rows_of(0, len(each))]
    one_launch = len(alike) == 1 and unobserved(tensors) and all(map(_is_readable, tensors))
    if not one_launch or len({tensor.device for tensor in tensors}) > 1:
        return update_all(populations, batch, counts, step)
    # importing it imports Triton
    from rnnorm.kernels.triton import update as kernel

    kernel.update(own, batch, counts[next(iter(own))], step)
    others = {site: moments for site, moments in batch.items() if site not in own}
    return update_all(populations, others, counts, step)


def _has_rows(each: Population) -> bool:
    """Tell whether a population copies a row for each step, where a frozen one gives views."""
    return type(each) is Population and not each.shared


def _is_readable(buffer: Tensor) -> bool:
    """Tell whether a kernel can use a buffer in place: on its device, and without a gradient."""
    there = buffer.device.type == ("cpu" if gpu.interpreted() else "cuda")
    return there and buffer.is_contiguous() and not buffer.requires_grad


def layer(call: LayerCall) -> LayerResult:
    """Run a layer as ``reference.layer`` does, without masks; the cell does not read ``t``."""
    return gpu.run(call, cuda=False)
