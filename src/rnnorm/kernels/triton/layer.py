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

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels.covered import uncovered
from rnnorm.kernels.inputs import inputs_of, options_of, taken_of
from rnnorm.kernels.mask import Mask
from rnnorm.norm.moments import Moments
from rnnorm.norm.spec import Norm

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


def refuses(cell: Cell, norm: Norm | None, device: torch.device, dtype: torch.dtype) -> str:
    """Why the kernels do not cover a layer, empty if they do."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != ("cpu" if interpreted else "cuda"):
        where = "on the CPU with TRITON_INTERPRET=1" if interpreted else "on a GPU"
        return f"it runs {where}, not on {device.type}"
    return uncovered(cell, norm, dtype, _COVERED)


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
    inputs = inputs_of(
        cell,
        active,
        x,
        batch_sizes,
        state,
        weights,
        gamma,
        beta,
        constants,
        masks,
        narrow=x.dtype,
        wide=torch.promote_types(x.dtype, torch.float32),
    )
    options = options_of(cell, norm, min_rows)
    results = triton_forward(*inputs, *options, inputs.differentiable)
    state_n = tuple(r.to(s.dtype) for r, s in zip(results[1:], state, strict=False))
    return results[0], state_n, taken_of(norm, active, min_rows, results)
