"""The Triton kernels compiled for GPUs that are not here: registers suffice."""

import os

import pytest

pytest.importorskip("triton", reason="`make triton` runs these")
if os.environ.get("TRITON_INTERPRET") == "1" or os.environ.get("RNNORM_COMPILE_TRITON") != "1":
    pytest.skip("`make triton` runs these", allow_module_level=True)

from ahead_of_time import ARCHITECTURES, VARIANTS, compiled


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_little_is_spilled(variant, direction, architecture):
    use = compiled(variant, direction, architecture)
    assert use.stack <= 48, use
    assert use.shared <= 48 * 1024
