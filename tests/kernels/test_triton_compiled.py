"""The Triton kernels compiled for GPUs that are not here: registers suffice."""

import os

import pytest

pytest.importorskip("triton", reason="`make triton` runs these")
if os.environ.get("TRITON_INTERPRET") == "1" or os.environ.get("RNNORM_COMPILE_TRITON") != "1":
    pytest.skip("`make triton` runs these", allow_module_level=True)

import torch
from ahead_of_time import ARCHITECTURES, VARIANTS, compiled, compiled_look_up, compiled_update


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_little_is_spilled(variant, direction, architecture):
    use = compiled(variant, direction, architecture)
    assert use.stack <= 48, use
    # what every supported GPU has; products in tf32 take more of it on sm_90
    assert use.shared <= 64 * 1024


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("ages", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_look_up_spills_nothing(dtype, ages, architecture):
    assert compiled_look_up(dtype, ages, architecture).stack == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("momentum", [None, 0.1])
@pytest.mark.parametrize(
    ("dtype", "each"), [(torch.float32, False), (torch.float32, True), (torch.float64, True)]
)
def test_the_update_spills_nothing(dtype, each, momentum, architecture):
    assert compiled_update(dtype, each, momentum, architecture).stack == 0
