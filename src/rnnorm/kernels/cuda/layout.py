"""How the blocks of a kernel of many steps share the work of a GPU."""

from __future__ import annotations

import functools
from typing import NamedTuple

# warps of a block that compute
_WARPS = 16
#: most rows of a batch
MOST_ROWS = 128
# most blocks that have parts of a sum over units (``gather_parts`` of ``sums.cuh``)
_MOST_BLOCKS = 160
# architecture of the first GPUs that copy whole chunks
_BULK = 90
# a copy from the L2 cache, as measured on an H200: bytes a nanosecond, nanoseconds until the first
# byte arrives, and nanoseconds that each chunk takes besides
_BYTES_A_NS, _LATENCY_NS, _CHUNK_NS = 109, 900, 300


class Gpu(NamedTuple):
    """The properties of a GPU that a layout depends on.

    Args:
        multiprocessors: most blocks of a launch, which all run at once.
        shared: bytes of shared memory that a block may have.
        architecture: name of the architecture for the compiler.
    """

    multiprocessors: int
    shared: int
    architecture: str


class Layout(NamedTuple):
    """How the blocks of a launch share the work; ``layout.cuh`` explains the constants.

    Args:
        grid: number of blocks.
        units: units of a block.
        row_warps: warps that share the rows of a product, each with 16 of them.
        stages: chunks that are copied or multiplied at once.
        stride: rows of the numbers that blocks exchange.
        pieces: pieces of 16 bytes of a row.
        chunk: pieces of a chunk.
        shared: bytes of shared memory of a block.
        bulk: whether the GPU copies whole chunks.
    """

    grid: int
    units: int
    row_warps: int
    stages: int
    stride: int
    pieces: int
    chunk: int
    shared: int
    bulk: bool

    @property
    def threads(self) -> int:
        """Return the number of threads of a block; one more warp copies chunks."""
        return 32 * (_WARPS + self.bulk)


@functools.lru_cache(maxsize=4096)
def lay_out(
    gpu: Gpu, *, backward: bool, gates: int, rows: int, units: int, half: bool, groups: int = 0
) -> Layout | None:
    """Choose a layout, None if the rows or weights do not fit into the multiprocessors.

    Args:
        gpu: the GPU.
        backward: whether the backward pass is launched.
        gates: gates of the cell.
        rows: rows of the batch.
        units: hidden units.
        half: whether a number of the product has 16 bits.
        groups: groups of gates that share statistics over units, 0 if statistics are over rows.
    """
    if not 0 < rows <= MOST_ROWS:
        return None
    most = min(gpu.multiprocessors, _MOST_BLOCKS) if groups else gpu.multiprocessors
    sizes = (8, 16) if backward or gates == 1 else (2, 4, 6, 8, 10, 12, 16)
    each = next((size for size in sizes if -(-units // size) <= most), None)
    if each is None:
        return None
    tiles = -(-rows // 16)
    row_warps = 1 << (tiles - 1).bit_length()
    split, stride, piece = _WARPS // row_warps, 16 * tiles, 8 if half else 4
    columns = each if backward else -(-gates * each // 8) * 8
    pitch = columns + 8 + (8 if columns % 16 == 8 else 0)
    floats = _WARPS * each * 2 * (gates + 1) + _WARPS + 4
    floats += 16 * row_warps * 2 * (groups + 1) if groups else 0
    fixed = -(-4 * floats // 128) * 128 + 128
    needed = -(-(gates * units if backward else units) // piece)
    bulk = int(gpu.architecture[3:]) >= _BULK
    best: tuple[float, Layout] | None = None
    for multiple in range(1, 17):
        chunk = 2 * split * multiple
        count = -(-needed // chunk)
        pieces = count * chunk
        for stages in range(2, 7):
            room = max(stages * chunk * stride, split * stride * pitch // 4) * 16
            shared = fixed + pieces * columns * 16 + room
            if shared > gpu.shared:
                continue
            copied = chunk * stride * 16 / _BYTES_A_NS
            # a chunk waits for its copy, which is one of several on their way, or for the threads
            time = copied + count * max(copied, _LATENCY_NS / (stages - 1), _CHUNK_NS)
            if best is None or time < best[0]:
                grid = -(-units // each)
                layout = Layout(grid, each, row_warps, stages, stride, pieces, chunk, shared, bulk)
                best = time, layout
    return best and best[1]
