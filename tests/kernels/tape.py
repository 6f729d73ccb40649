"""A stand-in for a CUDA graph on the CPU: it runs again what it saw, on the same memory."""

from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# operators whose result the host has to wait for, and functions that copy to a device
_WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero"}
_COPIES = ("as_tensor", "from_numpy", "tensor")


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.overloadpacket.__name__ in _WAITS:
            raise RuntimeError(f"{operator} waits, which is not permitted in a graph")
        result = operator(*args, **(kwargs or {}))
        self.calls.append((operator, args, kwargs or {}, result))
        return result

    def note(self, launch):
        """For what torch does not see: runs it, and notes it."""
        with torch.utils._python_dispatch._disable_current_modes():
            launch()
        self.calls.append((launch, (), {}, None))

    def replay(self):
        # it may write to tensors of any mode, as a graph's kernels do
        with torch.inference_mode():
            for function, args, kwargs, result in self.calls:
                anew = function(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(anew), strict=True):
                    # a view, or what was changed in place, is there already
                    if isinstance(old, torch.Tensor) and not shared(old, new):
                        old.copy_(new)


def shared(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def capture(run):
    """As ``rnnorm.kernels.cuda_graphs`` has it."""
    refused = mock.Mock(
        side_effect=RuntimeError("a copy from the host is not permitted in a graph")
    )
    with Tape() as tape, mock.patch.multiple(torch, **dict.fromkeys(_COPIES, refused)):
        results = run()
    # a graph is captured without being run
    for result in results:
        result.fill_(torch.nan)
    return tape.replay, results
