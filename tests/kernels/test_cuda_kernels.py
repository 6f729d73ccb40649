"""The kernels in CUDA C++ on a GPU, or on an emulated one, against the definition."""

import contextlib
from functools import partial

import emulated
import pytest
import torch
from gpu_or_interpreter import DEVICE, INTERPRETED
from problems import Problem as OnCpu
from problems import errors
from test_triton_values import CASES as ALL

import rnnorm
from rnnorm.kernels import dispatch, reference
from rnnorm.kernels.call_inputs import inputs_of, options_of
from rnnorm.kernels.cuda import layer as cuda
from rnnorm.kernels.cuda import layout as layouts
from rnnorm.kernels.cuda import passes, persistent
from rnnorm.kernels.triton import layer as triton

Problem = partial(OnCpu, device=DEVICE)
# too large for an emulation, or no kernel of many steps runs them
SLOW = {"lstm-one-step", "lstm-rows-in-blocks", "lstm-units-in-blocks"}
CASES = {
    **{name: case for name, case in ALL.items() if name not in SLOW},
    "lstm-wide": {"cell": "LSTM", "norm": "all", "shape": (3, 34, 2, 70)},
    "lstm-layer-wide": {"cell": "LSTM", "norm": "layer", "shape": (3, 34, 2, 70)},
    "gru-wide": {"cell": "GRU", "norm": "all", "shape": (3, 20, 2, 70)},
}
if not INTERPRETED:
    CASES |= {
        f"{cell}-{norm}-{rows}x{units}".lower(): {
            "cell": cell,
            "norm": norm,
            "shape": (5, rows, 20, units),
        }
        for cell in ("LSTM", "GRU")
        for norm in ("all", "layer", "none")
        for rows, units in ((100, 100), (64, 300), (20, 650))
    }


@pytest.fixture
def launched(monkeypatch, tmp_path_factory):
    """Let the GPU, or an emulated one, run whatever it can; the variants that it ran."""
    monkeypatch.setattr(passes, "_FEW_UNITS", 0)
    monkeypatch.setattr(passes, "_FEW_UNITS_RAGGED", 0)
    monkeypatch.setattr(passes, "_MANY_STATES", 1 << 30)
    monkeypatch.setattr(persistent, "float32_precision", lambda: "ieee")
    # one kernel that fails must not leave out those of later tests
    monkeypatch.setattr(persistent, "_broken", {})
    if not INTERPRETED:
        found, ready = [], persistent.ready

        def noted(variant, layout, device):
            found.append((variant, layout))
            return ready(variant, layout, device)

        monkeypatch.setattr(persistent, "ready", noted)
        return found
    folder = tmp_path_factory.getbasetemp() / "variants"
    folder.mkdir(exist_ok=True)
    return emulated.on_cpu(monkeypatch, folder)


# what these kernels alone have
RAGGED = {"shape": (6, 7, 3, 9), "lengths": [6, 6, 5, 3, 3, 2, 1]}
RESETS = {**RAGGED, "resets": 0.3}
MORE = {
    "lstm-layer-resets": {"cell": "LSTM", "norm": "layer", **RESETS},
    "lstm-evaluation-resets": {"cell": "LSTM", "norm": "all", "age": "own", **RESETS}
    | {"min_rows": None},
    "rnn-none-resets": {"cell": "RNN_TANH", "norm": "none", "shape": (4, 20, 2, 5), "resets": 0.3},
    "lstm-rms": {"cell": "LSTM", "norm": "rms", **RESETS},
    "gru-rms": {"cell": "GRU", "norm": "rms", "bias": False, **RAGGED},
    "lstm-gate": {"cell": "LSTM", "norm": "layer-gate", **RAGGED},
    "gru-gate": {"cell": "GRU", "norm": "layer-gate", **RAGGED},
    "gru-term": {"cell": "GRU", "norm": "layer-term", **RESETS},
    "lstm-layer-joint-gate": {"cell": "LSTM", "norm": "layer-joint-gate", **RAGGED},
    "rnn-rms-joint": {"cell": "RNN_TANH", "norm": "rms-joint-term", **RESETS},
    "peephole": {"cell": "LSTM-output", "norm": "all", **RAGGED},
    "peepholes": {"cell": "LSTM-all", "norm": "joint-cell", **RAGGED, "min_rows": 4},
    "peepholes-layer": {"cell": "LSTM-all", "norm": "layer", **RESETS},
    "zoneout": {"cell": "LSTM", "norm": "layer", "dropout": "zoneout", **RESETS},
    "zoneout-few-rows": {"cell": "LSTM", "norm": "all", "dropout": "every", **RAGGED}
    | {"min_rows": 4},
    "zoneout-expected": {"cell": "LSTM", "norm": "all", "dropout": "expectation", **RAGGED}
    | {"min_rows": None},
    "zoneout-gru": {"cell": "GRU", "norm": "layer", "dropout": "zoneout-h", **RESETS},
    "zoneout-rnn": {"cell": "RNN_TANH", "norm": "all", "dropout": "zoneout-h", **RAGGED}
    | {"min_rows": 4},
    "candidate-gru": {"cell": "GRU", "norm": "rms", "dropout": "candidate", **RAGGED},
    "hidden": {"cell": "LSTM", "norm": "layer", "dropout": "hidden", **RAGGED},
    "every": {"cell": "LSTM-all", "norm": "rms", "dropout": "every", **RESETS},
    "every-gru": {"cell": "GRU", "norm": "none", "dropout": "every", **RESETS},
    "ligru": {"cell": "LiGRU", "norm": "all", **RAGGED},
    "ligru-layer": {"cell": "LiGRU", "norm": "layer-joint", "dropout": "candidate", **RESETS},
    "gru-both": {"cell": "GRU_BOTH", "norm": "joint", **RAGGED},
    "gru-both-term": {"cell": "GRU_BOTH", "norm": "layer-term", "dropout": "every", **RESETS},
    "carry": {"cell": "LSTM", "norm": "batch-carry", **RAGGED, "min_rows": 4},
    "carry-layer": {"cell": "LSTM", "norm": "layer-carry", "dropout": "zoneout", **RESETS},
    "carry-gate": {"cell": "LSTM", "norm": "rms-carry-gate", "dropout": "candidate", **RAGGED},
    "carry-evaluation": {"cell": "LSTM", "norm": "batch-carry", "age": "own", **RESETS}
    | {"min_rows": None},
    "mixed": {"cell": "GRU", "norm": "mixed", **RAGGED},
    "mixed-input": {"cell": "LSTM", "norm": "mixed-input", **RAGGED, "min_rows": 4},
    "mixed-rms": {"cell": "LSTM", "norm": "mixed-rms", **RESETS},
    "zoneout-states": {"cell": "LSTM", "norm": "layer", "dropout": "zoneout", "all_states": True}
    | RESETS,
    "carry-states": {"cell": "LSTM", "norm": "batch-carry", "all_states": True, **RAGGED},
    "one-step": {"cell": "LSTM-all", "norm": "all", "dropout": "every", "shape": (1, 4, 2, 3)},
}


def check(case, dtype, launched, factor, least=1e-6, layer=triton.layer):
    """Compare with the error of the definition in the same type."""
    problem = Problem(**case)
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(layer, dtype, poison=True)
    own = errors(problem.results(reference.layer, dtype), expected)
    for name, error in errors(found, expected).items():
        assert error <= factor * max(own.values()) + least, name
    # the reference computes the gradient of every c
    by_reference = problem.all_states and problem.its_cell.name == "LSTM"
    assert {variant.backward for variant, _ in launched} == {False, not by_reference}


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("case", CASES)
def test_float32(case, launched, monkeypatch):
    if CASES[case]["cell"] == "RNN_RELU":
        # only products of tf32 take infinite numbers
        monkeypatch.setattr(persistent, "float32_precision", lambda: "tf32")
        check(CASES[case], torch.float32, launched, 1, least=5e-3)
    else:
        check(CASES[case], torch.float32, launched, 12)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("case", MORE)
def test_what_these_kernels_alone_have(case, launched, monkeypatch):
    if MORE[case]["cell"] == "LiGRU":
        monkeypatch.setattr(persistent, "float32_precision", lambda: "tf32")
        check(MORE[case], torch.float32, launched, 1, least=5e-3, layer=cuda.layer)
    else:
        check(MORE[case], torch.float32, launched, 12, layer=cuda.layer)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("lstm-rms", torch.bfloat16),
        ("lstm-layer-joint-gate", torch.float16),
        ("every", torch.bfloat16),
        ("every-gru", torch.float16),
        ("ligru", torch.bfloat16),
        ("carry-layer", torch.bfloat16),
    ],
)
def test_what_they_alone_have_in_half(case, dtype, launched):
    check(MORE[case], dtype, launched, 4, layer=cuda.layer)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("lstm", torch.bfloat16),
        ("lstm-evaluation", torch.bfloat16),
        ("gru", torch.float16),
        ("gru-layer", torch.bfloat16),
        ("rnn", torch.float16),
    ],
)
def test_half(case, dtype, launched):
    check(CASES[case], dtype, launched, 4)


@pytest.mark.skipif(not INTERPRETED, reason="this GPU is another")
@pytest.mark.parametrize("case", ["lstm-ragged", "gru-layer"])
def test_on_gpus_without_copies_of_chunks(case, monkeypatch, tmp_path):
    monkeypatch.setattr(passes, "_FEW_UNITS_RAGGED", 0)
    monkeypatch.setattr(persistent, "float32_precision", lambda: "ieee")
    # few multiprocessors: a block has more units
    launched = emulated.on_cpu(monkeypatch, tmp_path, 2, "sm_80")
    check(CASES[case], torch.float32, launched, 12)
    assert not any(layout.bulk for _, layout in launched)


def test_repeats(launched):
    problem = Problem(**CASES["lstm-ragged"])
    first, second = (problem.results(triton.layer, torch.float32) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("case", ["lstm-none", "lstm-layer", "gru-none"])
def test_steps_without_a_row(case, launched):
    problem = Problem(**{**CASES[case], "shape": (8, *CASES[case]["shape"][1:])})
    problem.sizes = torch.cat([problem.sizes, torch.zeros(2, dtype=torch.int64)])
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(triton.layer, torch.float32)
    assert max(errors(found, expected).values()) < 1e-4
    assert launched


@pytest.mark.parametrize("what", ["rms", "zoneout", "peephole"])
def test_use_backend_alone_runs_them(what, launched):
    torch.manual_seed(0)
    options = {
        "rms": {"norm": "rms"},
        "zoneout": {"norm": "layer", "recurrent_dropout": rnnorm.Zoneout(hidden=0.2, cell=0.3)},
        "peephole": {"norm": "layer", "peephole": "all"},
    }[what]
    layer = rnnorm.LSTM(3, 5, **options, device=DEVICE)
    x, reset = torch.randn(4, 3, 3, device=DEVICE), torch.rand(4, 3, device=DEVICE) < 0.4

    def results(backend):
        layer.zero_grad()
        torch.manual_seed(1)
        with contextlib.nullcontext() if backend is None else rnnorm.use_backend(backend):
            output, _ = layer(x, reset=reset)
        output.square().sum().backward()
        return [output.detach(), *[each.grad for each in layer.parameters()]]

    before = dispatch.calls.copy()
    expected = results(None)
    assert "cuda" not in dispatch.calls - before
    assert not launched
    found = results("cuda")
    assert (dispatch.calls - before)["cuda"] == 1
    assert launched
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_what_they_do_not_take_is_said(launched):
    layer = rnnorm.LSTM(3, 5, norm="rms", device=DEVICE)
    with rnnorm.use_backend("cuda"):
        with pytest.raises(RuntimeError, match=r"1 to 128 rows.* got 129 rows and 5 units"):
            layer(torch.randn(2, 129, 3, device=DEVICE))
        with pytest.raises(RuntimeError, match=r"'cuda' does not cover.*no torch.float64"):
            layer.double()(torch.randn(2, 3, 3, dtype=torch.float64, device=DEVICE))
    assert not launched


GPU = layouts.Gpu(132, 232448, "sm_90")


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("gates", [1, 3, 4])
def test_a_layout_fits(half, backward, gates):
    for rows in (1, 16, 17, 100, 128):
        for units in (1, 7, 100, 512, 1000):
            layout = layouts.lay_out(
                GPU,
                backward=backward,
                gates=gates,
                rows=rows,
                units=units,
                half=half,
            )
            assert layout is not None
            assert layout.grid * layout.units >= units
            assert layout.grid <= GPU.multiprocessors
            assert layout.stride >= rows
            assert layout.shared <= GPU.shared
            assert layout.pieces % layout.chunk == 0
            assert layout.pieces * (8 if half else 4) >= (gates * units if backward else units)
            assert layout.chunk % (2 * 16 // layout.row_warps) == 0


@pytest.mark.parametrize(("rows", "units"), [(129, 100), (100, 3000), (0, 10)])
def test_what_has_no_layout(rows, units):
    more = {"backward": False, "gates": 4, "half": True}
    assert layouts.lay_out(GPU, rows=rows, units=units, **more) is None


def test_a_refused_launch_leaves_the_work_to_other_kernels(launched, monkeypatch):
    problem = Problem(**CASES["lstm"])
    expected = problem.results(reference.layer, torch.float64)

    def refuse(variant, layout, device):
        def launch(grid, shared, arguments):
            raise RuntimeError("too many blocks")

        return launch

    monkeypatch.setattr(persistent, "_broken", {})
    monkeypatch.setattr(persistent, "ready", refuse)
    here = persistent.gpu_of
    broken = persistent._broken
    monkeypatch.setattr(persistent, "gpu_of", lambda device: None if broken else here(device))
    with pytest.warns(RuntimeWarning, match="too many blocks"):
        found = problem.results(triton.layer, torch.float32)
    assert max(errors(found, expected).values()) < 1e-5


def test_it_runs_where_it_was_faster(launched, monkeypatch):
    def runs(norm, rows, units, min_rows=2, ragged=False):
        problem = Problem(cell="LSTM", norm=norm, shape=(2, rows, 1, units), min_rows=min_rows)
        call = problem.call(reference.layer, problem.leaves)
        inputs = inputs_of(call, narrow=torch.float32, wide=torch.float32)
        options = options_of(call.cell, call.norm, call.min_rows)
        return passes.layout_of(inputs, options, back=False, ragged=ragged) is not None

    monkeypatch.undo()
    monkeypatch.setattr(persistent, "gpu_of", lambda device: GPU)
    assert runs("all", 100, 100)
    assert not runs("layer", 100, 100)
    assert runs("layer", 20, 500)
    assert not runs("all", 64, 512)
    assert runs("all", 64, 512, min_rows=None)
    assert runs("all", 64, 512, ragged=True)
    assert runs("layer", 64, 512, ragged=True)
    assert not runs("layer", 64, 256, ragged=True)
    assert not runs("all", 129, 16)


def test_a_gpu_whose_driver_fails_is_left_out(monkeypatch):
    def fail(device):
        raise RuntimeError("the driver cannot be loaded")

    monkeypatch.setattr(persistent, "_broken", {})
    monkeypatch.setattr(persistent, "_properties", fail)
    device = torch.device("cuda", 0)
    with pytest.warns(RuntimeWarning, match="driver cannot be loaded"):
        assert persistent.gpu_of(device) is None
    assert persistent.gpu_of(device) is None
    assert persistent.gpu_of(torch.device("cpu")) is None
