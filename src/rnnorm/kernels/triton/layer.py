"""The Triton kernels with the reference's signature, and what they do not cover."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.inputs import NO_MASKS, PEEPHOLES, Inputs, options_of, sites_of
from rnnorm.kernels.mask import Mask
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import BatchNorm, Norm

_LEAST = (3, 6)


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
#: why they are not chosen unasked
UNPROVEN = (
    'compiled and interpreted, never run on a GPU: they run under use_backend("triton") alone'
)

_COVERED = (LSTM(), GRU(), RNN(), RNN("relu"))
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def refuses(cell: Cell, norm: Norm | None, device: torch.device, dtype: torch.dtype) -> str:
    """Why the kernels do not cover a layer, empty if they do."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != ("cpu" if interpreted else "cuda"):
        where = "on the CPU with TRITON_INTERPRET=1" if interpreted else "on a GPU"
        return f"it runs {where}, not on {device.type}"
    if cell not in _COVERED:
        return f"it has no {cell}"
    if dtype not in _DTYPES:
        return f"it has no {dtype}"
    if "carry" in cell.active_sites(norm):
        return "it does not normalise the carried cell"
    if torch._C._are_functorch_transforms_active():
        return "its operators have no torch.func transforms"
    if forward_ad._current_level >= 0:
        return "its operators have no forward-mode derivative"
    return ""


def layer(
    cell: Cell,
    norm: Norm | None,
    x: Tensor,
    batch_sizes: Tensor | None,
    state: State,
    weights: Weights,
    gamma: Mapping[str, Tensor],
    beta: Mapping[str, Tensor],
    constants: Mapping[str, Moments],
    min_rows: int | None,
    step: int | Tensor = 0,
    masks: Mapping[str, Mask] | None = None,
) -> tuple[Tensor, State, dict[str, Moments]]:
    """As ``reference.layer``, without masks; no cell here asks for ``step``."""
    # which imports Triton
    from rnnorm.kernels.triton.operators import triton_forward

    active = cell.active_sites(norm)
    sites = sites_of(active)
    wide = torch.promote_types(x.dtype, torch.float32)

    def ready(tensor: Tensor | None, dtype: torch.dtype = wide) -> Tensor | None:
        return None if tensor is None else tensor.to(dtype).contiguous()

    if batch_sizes is None:
        batch_sizes = torch.full((x.size(0),), x.size(1), dtype=torch.int64, device="cpu")
    statistics = [m for site in sites for m in constants.get(site, (None, None))]
    inputs = Inputs._make(
        [
            ready(x, x.dtype),
            batch_sizes.contiguous(),
            ready(state[0]),
            ready(state[1]) if len(state) > 1 else None,
            *[ready(weight, x.dtype) for weight in weights[:2]],
            *[ready(bias) for bias in weights[2:4]],
            *[None] * len(PEEPHOLES),
            *[ready(gamma.get(site)) for site in sites],
            ready(beta.get("cell")),
            *[ready(None if m is None else m.detach()) for m in statistics],
            *NO_MASKS,
        ]
    )
    differentiable = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in inputs
    )
    results = triton_forward(*inputs, *options_of(cell, norm, min_rows), differentiable)
    state_n = tuple(r.to(s.dtype) for r, s in zip(results[1:], state, strict=False))
    taken = {}
    if isinstance(norm, BatchNorm) and min_rows is not None:
        for k, site in enumerate(sites):
            if site in active:
                taken[site] = (results[3 + 2 * k], results[4 + 2 * k])
    return results[0], state_n, taken
