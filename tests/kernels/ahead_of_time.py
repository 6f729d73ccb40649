"""Compiles the Triton kernels for GPUs that are not here, and says what they need.

python tests/kernels/ahead_of_time.py > table.md
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rnnorm.kernels.known_cells import CELL_OF_NAME, independent, rectified
from rnnorm.kernels.triton import columns, look_up, loop, step, update
from rnnorm.kernels.triton.block import StepVariant
from rnnorm.kernels.triton.generate import equations
from rnnorm.kernels.triton.tile_sizes import choose_product, choose_tile, launch_options

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
ARCHITECTURES = (80, 90)
NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
# tensors in the type of the products; the others are wider
GIVEN = {"z", "narrow", "product", "d_z", "weight"}


class Variant(NamedTuple):
    """A cell with everything of a norm; rows and units choose the blocks.

    ``norm`` is "none", "batch", "population" (of given statistics), "joint" or "layer"; the cell
    "columns" stands for the input term. All steps may be one launch.
    """

    cell: str
    norm: str
    dtype: torch.dtype = torch.float32
    rows: int = 128
    units: int = 1024
    looped: bool = False

    def __str__(self):
        rows = "" if self.norm == "layer" else f"{self.rows} rows, "
        return (
            f"{self.cell}, {self.norm}, {NAMES[self.dtype]}, {rows}{self.units} units"
            + ", all steps" * self.looped
        )

    @property
    def wide(self):
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def scope(self):
        return {"none": "off", "population": "given"}.get(self.norm, "own")

    def constants(self):
        how = choose_tile(self.norm == "layer", self.rows, self.units, self.wide, 1e-5)
        if self.cell == "columns":
            how = how._replace(units=32)
            return {"SCOPE": self.scope, "SHIFTED": True, "TILE": how}
        out = self.scope if self.cell == "LSTM" else "off"
        joint = self.norm == "joint"
        shifted = joint or self.cell == "GRU"
        narrow = self.dtype != self.wide
        cell = CELL_OF_NAME[self.cell]
        return {
            "S": StepVariant(
                sum(cell.gates),
                equations(self.cell),
                len(cell.gates) > 1,
                self.scope,
                joint,
                shifted,
                out,
                narrow,
            ),
            "TILE": how,
            "P": None if independent(cell) else choose_product(how, rectified(cell)),
        }


# what is normalised less needs less than these
VARIANTS = (
    Variant("LSTM", "batch", rows=16),
    Variant("LSTM", "batch"),
    Variant("LSTM", "batch", units=256),
    Variant("LSTM", "batch", rows=256),
    Variant("LSTM", "batch", rows=512),
    Variant("LSTM", "batch", rows=1000),
    Variant("LSTM", "batch", torch.bfloat16),
    Variant("LSTM", "batch", torch.float64, rows=64),
    Variant("LSTM", "batch", torch.float64, rows=300),
    Variant("LSTM", "population"),
    Variant("LSTM", "joint"),
    Variant("LSTM", "none"),
    Variant("LSTM", "layer"),
    Variant("LSTM", "layer", units=256),
    Variant("LSTM", "layer", units=2048),
    Variant("LSTM", "layer", torch.float64),
    Variant("GRU", "batch"),
    Variant("GRU", "batch", torch.float16, rows=300),
    Variant("GRU", "layer"),
    Variant("GRU", "layer", units=256),
    Variant("GRU_BOTH", "batch"),
    Variant("LiGRU", "layer"),
    Variant("RNN_TANH", "batch"),
    Variant("RNN_RELU", "joint"),
    Variant("IndRNN_RELU", "batch"),
    Variant("LSTM", "batch", units=100, looped=True),
    Variant("LSTM", "batch", rows=64, units=256, looped=True),
    Variant("LSTM", "batch", torch.bfloat16, units=256, looped=True),
    Variant("LSTM", "batch", torch.float64, rows=64, units=128, looped=True),
    Variant("LSTM", "batch", rows=16, units=650, looped=True),
    Variant("LSTM", "layer", units=128, looped=True),
    Variant("LSTM", "layer", units=250, looped=True),
    Variant("GRU", "batch", units=128, looped=True),
    Variant("GRU", "layer", torch.float64, units=128, looped=True),
    Variant("RNN_TANH", "batch", torch.float16, units=128, looped=True),
    Variant("RNN_RELU", "joint", units=128, looped=True),
    Variant("LiGRU", "batch", units=128, looped=True),
    Variant("IndRNN_RELU", "batch", rows=512, looped=True),
    Variant("IndRNN_TANH", "layer", units=512, looped=True),
    Variant("columns", "batch"),
    Variant("columns", "batch", rows=512),
    Variant("columns", "batch", rows=1000),
    Variant("columns", "population", torch.float64, rows=64),
)


class Use(NamedTuple):
    """Registers a thread, bytes of stack a thread, to which they are spilled, shared bytes."""

    registers: int
    stack: int
    shared: int


def compiled(variant, direction, architecture):
    """What the kernel of one direction needs, on GPUs of one compute capability."""
    module = columns if variant.cell == "columns" else loop if variant.looped else step
    kernel = getattr(module, direction)
    constants = {k: v for k, v in variant.constants().items() if k in kernel.arg_names}
    signature, attributes = {}, {}
    for k, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        if name in kernel.do_not_specialize:
            signature[name] = "i32"
            continue
        if name not in ("units", "width") or variant.units % 16 == 0:
            # as torch allocates
            attributes[(k,)] = [["tt.divisibility", 16]]
        if name in ("units", "width"):
            signature[name] = "i32"
        elif name == "starts":
            signature[name] = "*i64"
        elif name == "arrived":
            signature[name] = "*i32"
        else:
            signature[name] = f"*{NAMES[variant.dtype if name in GIVEN else variant.wide]}"
    options = launch_options(constants["TILE"], looped=variant.looped)
    return used(kernel, signature, constants, attributes, options, architecture)


def compiled_look_up(dtype, ages, architecture):
    """What the look-up of the population's statistics needs."""
    constants = {"AGES": ages, "BLOCK": look_up._BLOCK}
    return compiled_population(look_up._look_up, constants, dtype, architecture)


def compiled_update(dtype, each, momentum, architecture):
    """What the update of the population's statistics needs."""
    constants = {"EACH": each, "MOMENTUM": momentum, "BLOCK": update._BLOCK}
    return compiled_population(update._update, constants, dtype, architecture)


def compiled_population(kernel, constants, dtype, architecture):
    """What a kernel on a population's buffers needs."""
    signature, attributes = {}, {}
    for k, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in kernel.do_not_specialize:
            signature[name] = "i32"
        else:
            attributes[(k,)] = [["tt.divisibility", 16]]
            whole = name.startswith(("counts", "ages", "rows", "batches"))
            signature[name] = f"*{'i64' if whole else NAMES[dtype]}"
    return used(kernel, signature, constants, attributes, look_up.OPTIONS, architecture)


def used(kernel, signature, constants, attributes, options, architecture):
    """What a kernel needs once it is compiled."""
    built = triton.compile(
        ASTSource(kernel, signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", architecture, 32),
        options=options,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(built.asm["cubin"])
        command = [TOOLS / "cuobjdump", "-res-usage", path]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    uses = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told))
    return Use(int(uses["REG"]), int(uses["STACK"]) + int(uses["LOCAL"]), built.metadata.shared)


def main():
    names = [f"sm_{a}, {d}" for a in ARCHITECTURES for d in ("forward", "backward")]
    print(f"Triton {triton.__version__}: registers, spilled and shared bytes\n")
    print("| kernel |", " | ".join(names), "|")
    print("|---" * (1 + len(names)) + "|")
    for variant in VARIANTS:
        uses = [
            compiled(variant, direction, architecture)
            for architecture in ARCHITECTURES
            for direction in ("forward", "backward")
        ]
        print(f"| {variant} |", *[" {}, {}, {} |".format(*use) for use in uses], flush=True)


if __name__ == "__main__":
    main()
