"""Whether Triton runs at all: it needs a C compiler, Python's headers and a driver new enough."""

import torch
import triton


@triton.jit
def _nothing() -> None:
    pass


def probe(device: torch.device) -> str:
    """What Triton raises where it is to compile and launch a kernel, in one line; empty if nothing.

    No tensor takes part, which could be one without numbers.
    """
    try:
        with torch.cuda.device(device):
            _nothing[(1,)]()
    # a compiler that fails, a header that is missing, a driver's error have nothing in common
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""
