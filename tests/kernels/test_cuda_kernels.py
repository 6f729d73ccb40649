"""The kernels in CUDA C++ on an emulated GPU, against the definition."""

import pytest
import torch
from gpu_or_interpreter import INTERPRETED

if not INTERPRETED:
    pytest.skip("`make triton` runs these, with TRITON_INTERPRET=1", allow_module_level=True)

import emulated
from problems import Problem
from test_triton_values import CASES as ALL
from test_triton_values import errors

from rnnorm.kernels import reference
from rnnorm.kernels.call_inputs import inputs_of, options_of
from rnnorm.kernels.cuda import passes, persistent
from rnnorm.kernels.triton import layer as triton

# too large for an emulation, or no kernel of many steps runs them
SLOW = {"lstm-one-step", "lstm-rows-in-blocks", "lstm-units-in-blocks"}
CASES = {
    **{name: case for name, case in ALL.items() if name not in SLOW},
    "lstm-wide": {"cell": "LSTM", "norm": "all", "shape": (3, 34, 2, 70)},
    "lstm-layer-wide": {"cell": "LSTM", "norm": "layer", "shape": (3, 34, 2, 70)},
    "gru-wide": {"cell": "GRU", "norm": "all", "shape": (3, 20, 2, 70)},
}


@pytest.fixture
def launched(monkeypatch, tmp_path_factory):
    """Let the emulated GPU run whatever it can; the variants that it ran."""
    monkeypatch.setattr(passes, "_FEW_UNITS", 0)
    monkeypatch.setattr(passes, "_FEW_UNITS_RAGGED", 0)
    monkeypatch.setattr(passes, "float32_precision", lambda: "ieee")
    folder = tmp_path_factory.getbasetemp() / "variants"
    folder.mkdir(exist_ok=True)
    return emulated.on_cpu(monkeypatch, folder)


def check(case, dtype, launched, factor, least=1e-6):
    """Compare with the error of the definition in the same type."""
    problem = Problem(**case)
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(triton.layer, dtype, poison=True)
    own = errors(problem.results(reference.layer, dtype), expected)
    for name, error in errors(found, expected).items():
        assert error <= factor * max(own.values()) + least, name
    assert {variant.backward for variant, _ in launched} == {False, True}


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("case", CASES)
def test_float32(case, launched, monkeypatch):
    if CASES[case]["cell"] == "RNN_RELU":
        # only products of tf32 take infinite numbers
        monkeypatch.setattr(passes, "float32_precision", lambda: "tf32")
        check(CASES[case], torch.float32, launched, 1, least=5e-3)
    else:
        check(CASES[case], torch.float32, launched, 12)


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


@pytest.mark.parametrize("case", ["lstm-ragged", "gru-layer"])
def test_on_gpus_without_copies_of_chunks(case, monkeypatch, tmp_path):
    monkeypatch.setattr(passes, "_FEW_UNITS_RAGGED", 0)
    monkeypatch.setattr(passes, "float32_precision", lambda: "ieee")
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


GPU = persistent.Gpu(132, 232448, "sm_90")


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("gates", [1, 3, 4])
def test_a_layout_fits(half, backward, gates):
    for rows in (1, 16, 17, 100, 128):
        for units in (1, 7, 100, 512, 1000):
            layout = persistent.lay_out(
                GPU,
                backward=backward,
                gates=gates,
                rows=rows,
                units=units,
                half=half,
                over_units=False,
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
    more = {"backward": False, "gates": 4, "half": True, "over_units": False}
    assert persistent.lay_out(GPU, rows=rows, units=units, **more) is None


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
