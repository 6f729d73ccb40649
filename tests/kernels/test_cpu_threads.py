"""Fewer threads than were asked for, as OpenMP may grant under a limit of its own."""

import os
import subprocess
import sys

import pytest

_CODE = """
import torch
import rnnorm

def run(threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer = rnnorm.LSTM(130, 256, norm="batch", initial_noise=0.0)
    x = torch.randn(30, 64, 130, requires_grad=True)
    with rnnorm.use_backend("cpu"):
        layer(x)[0].square().sum().backward()
    return [x.grad, *(p.grad for p in layer.parameters())]

alone = run(1)
for threads in (4, 7):
    assert all(map(torch.equal, run(threads), alone)), threads
"""


@pytest.mark.parametrize("limit", [1, 3])
def test_gradients_are_the_same_with_fewer_threads_than_asked_for(limit):
    environment = os.environ | {"OMP_THREAD_LIMIT": str(limit)}
    subprocess.run([sys.executable, "-c", _CODE], env=environment, check=True)
