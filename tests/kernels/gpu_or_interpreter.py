"""Where the Triton kernels are tested: interpreted on the CPU, or on a GPU; for each to import."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="`make triton` runs these")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("`make triton` runs these, with TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
