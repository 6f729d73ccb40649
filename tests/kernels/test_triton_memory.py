"""What the Triton kernels touch; a stray read may kill a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_or_interpreter import INTERPRETED

GUARDS = """
import sys
import at_once
import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder
from problems import Problem, assert_same
from gpu_or_interpreter import DEVICE
from rnnorm.kernels import reference
from rnnorm.kernels.triton import columns, layer as triton, loop, step

MARGIN = 64
fences, bounds = [], []

def checked(name, position):
    # a stray value that nothing depends on shows in no result
    access = getattr(InterpreterBuilder, name)
    def run(builder, *operands):
        places, masks = operands[0].data, operands[position].data
        places = np.broadcast_to(places, np.shape(masks))[np.asarray(masks, bool)]
        inside = [(places >= low) & (places < high) for low, high in bounds]
        assert np.logical_or.reduce(inside).all(), f"{name} beside all tensors"
        return access(builder, *operands)
    setattr(InterpreterBuilder, name, run)

checked("create_masked_load", 1)
checked("create_masked_store", 2)

def guarded(tensor):
    # a copy with nan before and behind it, a multiple of 16 bytes away
    if not tensor.is_floating_point() or not tensor.is_contiguous():
        return tensor
    whole = torch.full((tensor.numel() + 2 * MARGIN,), torch.nan).to(tensor)
    inner = whole[MARGIN : MARGIN + tensor.numel()].view(tensor.shape)
    fences.append((whole, tensor.numel()))
    return inner.copy_(tensor)

class Guarded:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            # one copy of each buffer, or views of one would part
            copies, given = {}, []
            for argument in arguments:
                if isinstance(argument, torch.Tensor):
                    key = argument.data_ptr(), argument.shape
                    argument = copies.setdefault(key, (argument, guarded(argument)))[1]
                given.append(argument)
            tensors = [each for each in given if isinstance(each, torch.Tensor)]
            bounds[:] = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors]
            self.kernel[grid](*given, **options)
            for original, copy in copies.values():
                if original is not copy:
                    original.copy_(copy)
        return launch

for module in (step, columns, loop):
    for name in ("forward", "backward"):
        setattr(module, name, Guarded(getattr(module, name)))

cell, norm, min_rows = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None
looped = sys.argv[4] == "True"
at_once.loop(pytest.MonkeyPatch(), looped)
problem = Problem(cell, norm, (3, 5, 3, 9), [3, 3, 2, 2, 1], min_rows, device=DEVICE)
expected = problem.results(reference.layer, torch.float64)
assert_same(problem.results(triton.layer, torch.float64, poison=True), expected, 1e-11)
assert len(fences) > (60 if looped else 100)
for whole, size in fences:
    assert whole[:MARGIN].isnan().all() and whole[MARGIN + size :].isnan().all(), "a fence is down"
"""

FAR = """
import ctypes, mmap
import torch, triton
import triton.language as tl
from rnnorm.kernels.triton.tile import Tile, accumulate, address, load, locate

@triton.jit
def kernel(matrix, out, n, width, TILE: tl.constexpr):
    rows, cols, there = locate(0, n, width, TILE)
    there = there & (cols < 2)
    tl.store(out + rows * 2 + cols, load(matrix, rows, cols, there, width, TILE), there)
    accumulate(matrix, rows, cols, there, width, 0.5)

# 20 GB of addresses, of which a few pages are ever touched
width, count = 2**31 - 1, 3
size = 4 * (width * (count - 1) + 16)
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
matrix = torch.frombuffer(memory, dtype=torch.float32)
for row in range(count):
    matrix[row * width : row * width + 2] = torch.tensor([row + 0.25, row + 0.75])
out = torch.zeros(count, 2)
how = Tile(0, True, 4, 2, 1, tl.float32, 1e-5)
kernel[(1,)](matrix, out, count, width, TILE=how)
expected = torch.arange(3.0)[:, None] + torch.tensor([0.25, 0.75])
assert torch.equal(out, expected), out
found = torch.stack([matrix[row * width : row * width + 2] for row in range(count)])
assert torch.equal(found, expected + 0.5), found
"""


def run(source, tmp_path, *arguments):
    # a kernel's source is read from its file
    path = tmp_path / "script.py"
    path.write_text(source, encoding="utf-8")
    here = str(Path(__file__).parent)
    found = subprocess.run(
        [sys.executable, path, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("looped", [True, False], ids=["one-launch", "launches"])
@pytest.mark.parametrize(
    ("cell", "norm", "min_rows"),
    [("LSTM", "all", 3), ("LSTM", "layer", 2), ("GRU", "all", 0), ("RNN_TANH", "joint", 3)],
)
def test_no_kernel_reads_or_writes_beside_its_tensors(cell, norm, min_rows, looped, tmp_path):
    run(GUARDS, tmp_path, cell, norm, str(min_rows), str(looped))


@pytest.mark.skipif(not INTERPRETED, reason="the memory is the CPU's")
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for addresses without memory")
def test_offsets_have_64_bits(tmp_path):
    run(FAR, tmp_path)
