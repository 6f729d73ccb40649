"""Trains a step with the rnnorm that is installed: on the fused kernels, or on those named."""

import sys
from pathlib import Path

import torch

import rnnorm
from rnnorm.kernels import dispatch

expected = sys.argv[1] if len(sys.argv) > 1 else "cpu"
assert Path(rnnorm.__file__).is_relative_to(sys.prefix), (
    f"{rnnorm.__file__} is not the installed one"
)

torch.manual_seed(0)
# noise would make two losses incomparable
lstm = rnnorm.LSTM(8, 16, norm="batch", initial_noise=0.0)
optimizer = torch.optim.SGD(lstm.parameters(), lr=1.0)
x, wanted = torch.randn(5, 12, 8), torch.randn(5, 12, 16)


def loss() -> torch.Tensor:
    return (lstm(x)[0] - wanted).square().mean()


before = loss()
before.backward()
optimizer.step()
after = loss()
print(f"loss {before:.4f}, after a step {after:.4f}, on {dict(dispatch.calls)}")
print(rnnorm.backends())
assert after < before
assert set(dispatch.calls) == {expected}, f"expected the kernel {expected!r} alone"
