"""A launch that shows whether Triton runs: it needs a C compiler, Python's headers and a driver."""

import torch
import triton


@triton.jit
def _nothing() -> None:
    pass


def launch(device: torch.device) -> None:
    """Compiles a kernel that does nothing, and launches it, so that whatever is wrong is raised.

    No tensor takes part, which could be one without numbers.
    """
    with torch.cuda.device(device):
        _nothing[(1,)]()
