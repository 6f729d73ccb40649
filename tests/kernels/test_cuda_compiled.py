"""The kernels in CUDA C++ compiled by NVRTC for GPUs that are not here: registers suffice."""

import itertools
import os
import re
import subprocess

import pytest

pytest.importorskip("triton", reason="`make triton` runs these")
if os.environ.get("TRITON_INTERPRET") == "1" or os.environ.get("RNNORM_COMPILE_TRITON") != "1":
    pytest.skip("`make triton` runs these", allow_module_level=True)

from ahead_of_time import TOOLS
from compiled_cells import MILSTM, SLSTM, PeepholeLSTM, ThreeStates, TwoProducts

from rnnorm.cells.gru import GRU
from rnnorm.cells.ligru import LiGRU
from rnnorm.cells.mirnn import MIRNN
from rnnorm.kernels import own_cell
from rnnorm.kernels.cuda import compiler, persistent
from rnnorm.kernels.cuda import layout as layouts
from rnnorm.kernels.equations.trace import trace

# bytes of shared memory of a block, and the multiprocessors of a GPU, by architecture
GPUS = {
    "sm_80": (166912, 108),
    "sm_86": (101376, 82),
    "sm_89": (101376, 128),
    "sm_90": (232448, 132),
    "sm_100": (232448, 148),
}
CELLS = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1}
NORMS = ("own", "given", "off", "row")
# with resets, peepholes and recurrent dropout, or without
MORE = (False, True)
# users' cells
OWN = (SLSTM(), ThreeStates(), PeepholeLSTM(), MIRNN(), MILSTM(), TwoProducts())
# rows and units
SHAPES = {"BF16": (64, 512), "TF32": (20, 650), "FP32": (100, 100)}


@pytest.mark.parametrize("architecture", GPUS)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("cell", CELLS)
def test_little_is_spilled(cell, backward, architecture, tmp_path, monkeypatch):
    if why := compiler.unavailable():
        pytest.skip(why)
    monkeypatch.setenv("RNNORM_CACHE", str(tmp_path))
    shared, multiprocessors = GPUS[architecture]
    gpu = layouts.Gpu(multiprocessors, shared, architecture)
    for norm, (precision, (rows, units)), more in itertools.product(NORMS, SHAPES.items(), MORE):
        groups = (1 + (cell == "GRU")) * (norm == "row")
        if more and groups:
            # each gate by itself
            groups = CELLS[cell]
        layout = layouts.lay_out(
            gpu,
            backward=backward,
            gates=CELLS[cell],
            rows=rows,
            units=units,
            half=precision == "BF16",
            groups=groups,
        )
        if layout is None:
            # the weights of a smaller GPU's blocks do not fit
            assert shared < 200000
            continue
        scope = "own" if norm == "row" else norm
        variant = persistent.Variant(
            backward,
            cell,
            (0, 1, 2) if more and cell == "LSTM" else (),
            scope,
            scope if cell == "LSTM" else "off",
            False,
            cell == "GRU",
            precision,
            norm == "row",
            groups,
            resets=more,
            drops=more,
        )
        check(variant, layout, architecture, tmp_path)


# the first GPUs that the kernels serve, and those that copy whole chunks
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("cell", [LiGRU(), GRU("both"), GRU(False), *OWN], ids=str)
def test_little_is_spilled_of_other_cells(cell, architecture, tmp_path, monkeypatch):
    if why := compiler.unavailable():
        pytest.skip(why)
    monkeypatch.setenv("RNNORM_CACHE", str(tmp_path))
    shared, multiprocessors = GPUS[architecture]
    gpu = layouts.Gpu(multiprocessors, shared, architecture)
    graph = trace(cell)._replace(heads=1)
    own = own_cell.cell_of(graph)
    for norm, precision, backward in itertools.product(
        ("own", "row"), ("BF16", "TF32"), (False, True)
    ):
        groups = len(graph.gates) * (norm == "row")
        layout = layouts.lay_out(
            gpu,
            backward=backward,
            gates=sum(graph.gates),
            rows=64,
            units=384,
            half=precision == "BF16",
            groups=groups,
        )
        if layout is None:
            assert shared < 200000
            continue
        variant = persistent.Variant(
            backward,
            own.option,
            tuple(range(len({*own.names}))),
            "own",
            "own" if graph.leaves("cell") else "off",
            False,
            graph.separate,
            precision,
            norm == "row",
            groups,
            resets=True,
            drops=True,
            carry=bool(graph.leaves("carry")) and norm == "own",
        )
        check(variant, layout, architecture, tmp_path)


def check(variant, layout, architecture, folder):
    """Compile a variant, and look at what a thread of it needs."""
    text = persistent.source(variant.backward, variant.cell, variant.weights)
    path = folder / "kernel.cubin"
    path.write_bytes(compiler.compile(text, variant.defines(layout), architecture))

    def told(*command):
        return subprocess.run([*command, path], capture_output=True, text=True, check=True).stdout

    uses = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", told(TOOLS / "cuobjdump", "-res-usage")))
    stack = int(uses["STACK"]) + int(uses["LOCAL"])
    assert stack <= 300, (variant, layout, uses)
    # each quarter of a multiprocessor has a quarter of the registers, and whole warps
    assert -(-int(uses["REG"]) // 8) * 8 * 32 * -(-layout.threads // 128) <= 16384
    # what other blocks wrote may be stale in caches past which these loads do not go
    loads = set(re.findall(r"\b(?:LDG|LDGSTS)\.[\w.]+", told(TOOLS / "nvdisasm")))
    assert "LDG.E.STRONG.GPU" in loads
    copies = {load for load in loads if load.startswith("LDGSTS")}
    assert copies == (set() if layout.bulk else {"LDGSTS.E.BYPASS.128"})
    assert not [load for load in loads if "CONSTANT" in load]
