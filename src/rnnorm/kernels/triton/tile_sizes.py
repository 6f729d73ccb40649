"""The sizes of a call's tiles, and the options with which its programs are compiled."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from rnnorm.kernels.precision import float32_precision
from rnnorm.kernels.triton.loop import Product
from rnnorm.kernels.triton.tile import Tile

# programs that a large GPU runs at once, about
_PROGRAMS = 128


def choose_tile(by_row: bool, rows: int, units: int, wide: torch.dtype, eps: float) -> Tile:
    """Pick one of a few tile sizes, to limit the number of compiled variants."""
    double = wide == torch.float64
    number = tl.float64 if double else tl.float32
    multiple = min(16, units & -units)
    if by_row:
        most = 512 if double else 1024
        width = max(32, triton.next_power_of_2(units))
        return Tile(1, width <= most, 1, min(width, most), multiple, number, eps)
    most = 64 if double else 512
    height = max(16, triton.next_power_of_2(rows))
    one = height <= most
    few = triton.next_power_of_2(triton.cdiv(units, _PROGRAMS))
    # with many rows fewer units fit the registers
    many = 8 if height <= 128 or not one else 4
    height = height if one else 64
    return Tile(0, one, height, min(many, max(2, few)), multiple, number, eps)


def launch_options(how: Tile, *, looped: bool = False) -> dict[str, Any]:
    """Return the compile options of a program, with a number of warps as measured on an H200.

    A thread has two numbers over rows and in float64, four over units; up to 256 units one warp
    is enough, whose sums need no shared memory. A looped program has four or eight warps.
    """
    if looped:
        warps = 8 if how.rows > 64 else 4
    else:
        each = 2 if how.axis == 0 or how.wide == tl.float64 else 8 if how.units <= 256 else 4
        warps = max(1, min(16, how.rows * how.units // (32 * each)))
    # a changed default would round differently
    return {"num_warps": warps, "enable_fp_fusion": True}


def choose_product(how: Tile, rectified: bool) -> Product:
    """Choose how a program multiplies blocks, as was measured on an H200."""
    double = how.wide == tl.float64
    if how.axis == 1:
        return Product((16 if double else 32) if how.units <= 128 else 8, "ieee")
    depth = 32 if double or how.rows > 64 else 64
    if torch.version.hip:
        # not every AMD GPU has another precision
        return Product(depth, "ieee")
    if float32_precision() == "tf32":
        return Product(depth, "tf32")
    # three products of tf32 are as exact, except where a number is infinite
    return Product(depth, "ieee" if rectified else "tf32x3")


def programs_at_once(device: torch.device) -> int:
    """Return how many programs surely run at once on a GPU; an interpreter runs one at a time."""
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
