"""A launch that shows whether Triton runs: it needs a C compiler, Python's headers and a driver."""

import torch
import triton


@triton.jit
def _nothing() -> None:
    pass


def launch(device: torch.device) -> None:
    """Compile and launch an empty kernel, which raises whatever keeps Triton from running.

    It takes no tensor, as a fake tensor would have no memory.
    """
    with torch.cuda.device(device):
        # Triton 3.9 warns where it is not given
        _nothing[(1,)](enable_fp_fusion=True)
