"""The kernels' matrix product alone, in per cent of the multiply-adds that one core can do.

It compiles product.cpp with the headers of the kernels, for the instruction set that they use:

python benchmarks/product.py --out build/bench
RNNORM_CPU_ISA=portable python benchmarks/product.py
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rnnorm.experiments.bench.layers import verify
from rnnorm.experiments.bench.record import Record, describe, machine, write
from rnnorm.experiments.bench.timing import interleave, torch_threads
from rnnorm.kernels.cpu.library import isa

# rows, length of the sums and panels of a step of an LSTM in benchmarks/train_step.py
SIZES = [(100, 100, 7), (64, 512, 32), (20, 650, 41), (32, 250, 16), (20, 1000, 63)]
SIZES += [(100, 1000, 63), (1, 256, 16), (4, 256, 16), (16, 256, 16)]

# rows of a weight that are packed together: 16 units of an LSTM with their gates
PANEL = 64

# as in CMakeLists.txt
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
FLAGS_OF_ISA = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": [
        *("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"),
        "-mprefer-vector-width=512",
    ],
}
# the builds for bfloat16 compile float32 products as that for avx512 does
FLAGS_OF_ISA["amx"] = FLAGS_OF_ISA["avx512_bf16"] = FLAGS_OF_ISA["avx512"]


class Product:
    """The compiled product.cpp.

    Args:
        isa: the instruction set, a key of ``FLAGS_OF_ISA``.

    Raises:
        subprocess.CalledProcessError: if the compiler, ``CXX`` or c++, fails.
    """

    def __init__(self, isa: str) -> None:
        source = Path(__file__).with_suffix(".cpp")
        with tempfile.TemporaryDirectory() as folder:
            built = f"{folder}/product.so"
            headers = f"-I{source.parents[1] / 'csrc'}"
            command = [os.environ.get("CXX", "c++"), *FLAGS, *FLAGS_OF_ISA[isa], headers]
            subprocess.run([*command, "-shared", "-fPIC", str(source), "-o", built], check=True)
            self._library = ctypes.CDLL(built)
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._library.pack.argtypes = (pointer, size, size, pointer)
        self._library.multiply.argtypes = (pointer, size, size, pointer, size, pointer)
        self._library.pack.restype = self._library.multiply.restype = None
        self._library.multiply_adds.argtypes = (size,)
        self._library.multiply_adds.restype = ctypes.c_float

    def pack(self, weight: Tensor) -> Tensor:
        """Pack a weight ``(64 panels, K)`` as ``(panels, 64 K)`` in the order of the build."""
        _check("weight", weight)
        if weight.size(0) % PANEL:
            raise ValueError(f"weight must have a multiple of {PANEL} rows, got {weight.size(0)}")
        panels, K = weight.size(0) // PANEL, weight.size(1)
        packed = weight.new_empty(panels, PANEL * K)
        self._library.pack(weight.data_ptr(), K, panels, packed.data_ptr())
        return packed

    def multiply(self, a: Tensor, packed: Tensor) -> Tensor:
        """Compute ``a @ weight.T`` as ``(panels, n, 64)`` on one thread, panel after panel."""
        _check("a", a)
        _check("packed", packed)
        (n, K), panels = a.shape, packed.size(0)
        if packed.size(1) != PANEL * K:
            raise ValueError(
                f"packed must have {PANEL * K} columns for {K} of a, got {packed.size(1)}"
            )
        c = a.new_empty(panels, n, PANEL)
        self._library.multiply(a.data_ptr(), n, K, packed.data_ptr(), panels, c.data_ptr())
        return c

    def multiply_adds(self, count: int) -> None:
        """Run ``count`` multiply-adds in registers of the build's width, on one thread."""
        self._library.multiply_adds(count)


def _check(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float32 or tensor.dim() != 2 or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous float32 matrix, got {tuple(tensor.shape)} of "
            f"{tensor.dtype} with strides {tensor.stride()}"
        )


def time_product(build: Product, n: int, K: int, panels: int, seconds: float) -> Record:
    """Time a product ``(n, K) x (K, 64 panels)`` and as many multiply-adds in registers, in turn.

    Both run on one thread, and the product is compared with torch's before its time is taken.

    Returns:
        ``product`` and ``peak`` in GFLOP/s, and ``ratio``, the first as a share of the second.
    """
    torch.manual_seed(0)
    a, weight = torch.randn(n, K), torch.randn(PANEL * panels, K)
    packed, count = build.pack(weight), n * K * PANEL * panels
    verify(
        f"product {n}x{K}x{PANEL * panels}",
        lambda: {"product": build.multiply(a, packed).transpose(0, 1).flatten(1)},
        lambda: {"product": a @ weight.T},
    )
    # enough work for the clock's resolution
    times = max(1, 10**8 // count)

    def repeat() -> None:
        for _ in range(times):
            build.multiply(a, packed)

    peak, product = interleave(
        {"peak": partial(build.multiply_adds, times * count), "product": repeat}, seconds
    ).values()
    work = 2e-9 * times * count
    return {
        "shape": f"{n}x{K}x{PANEL * panels}",
        "product": work / product.seconds,
        "peak": work / peak.seconds,
        "ratio": 1 / product.ratio,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--out", type=Path, help="folder for product.csv and product.png")
    args = parser.parse_args()
    if not isa():
        parser.error("the CPU kernels are missing: rnnorm.backends() says why")
    build = Product(isa())
    records: list[Record] = []
    with torch_threads(1):
        about = machine()
        print(describe(about))
        for n, K, panels in SIZES:
            r = time_product(build, n, K, panels, args.seconds)
            print(
                f"{r['shape']:14} {r['product']:7.1f} of {r['peak']:7.1f} GFLOP/s "
                f"{100 * r['ratio']:5.1f} %",
                flush=True,
            )
            records.append(r | about)
    if args.out:
        write(
            records,
            args.out,
            "product",
            row=lambda r: str(r["shape"]),
            series=lambda r: str(r["isa"]),
            title="share of the multiply-adds of a core",
        )


if __name__ == "__main__":
    main()
