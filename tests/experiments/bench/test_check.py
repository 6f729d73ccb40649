"""The check of the kernels passes where they are right, and names what is wrong where not."""

import json
import math
import os

import pytest
import torch

import rnnorm
from rnnorm.experiments.bench import check as bench_check
from rnnorm.experiments.bench import examine as bench_examine
from rnnorm.experiments.bench.check import all_cases, check
from rnnorm.experiments.bench.drawn import Case, draw, layers
from rnnorm.experiments.bench.layers import Shape
from rnnorm.experiments.bench.timing import repeated, without_graphs
from rnnorm.experiments.commands.cli import main
from rnnorm.kernels import dispatch, reference
from rnnorm.kernels.triton import graphs

SHAPE = Shape(3, 5, 2, 4)
TRAINING = [Case("LSTM", "batch", mode, SHAPE) for mode in ("dense", "ragged")]
EVALUATION = [Case("LSTM", "batch", mode, SHAPE) for mode in ("evaluation", "ages")]
CASES = [*TRAINING, *EVALUATION]


def with_kernel(monkeypatch, layer, refuses=lambda request: "", unavailable=""):
    """Puts a layer in the place of every kernel but the reference."""
    made = dispatch.Kernel("made", unavailable, refuses, layer, traceable=False)
    monkeypatch.setattr(dispatch, "KERNELS", (made, dispatch.KERNELS[-1]))


class Changed(torch.autograd.Function):
    """The same values, and gradients as a function makes them."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


def examined(tmp_path, cases=TRAINING):
    """Whether the cases pass, and the file that is written."""
    file = tmp_path / "check.json"
    passed = check(cases=cases, timed=(), out=file)
    return passed, json.loads(file.read_text())


@pytest.mark.skipif(bool(rnnorm.backends()["cpu"]), reason="no CPU kernels")
def test_the_cpu_kernels_pass(tmp_path, capsys):
    cells = [Case(cell, "layer", "ragged", SHAPE) for cell in ("GRU", "RNN relu")]
    half = Case("GRU", "none", "evaluation", SHAPE, torch.bfloat16)
    file = tmp_path / "new" / "check.json"
    shape = Shape(4, 3, 2, 5)
    assert check(cases=[*CASES, *cells, half], timed=[shape], seconds=1e-3, out=file)
    said = capsys.readouterr().out.splitlines()
    found = json.loads(file.read_text())
    assert found.keys() == {
        *("passed", "summary", "machine", "limit", "kernels", "lines", "faults", "times")
    }
    assert found["passed"] is True
    assert found["faults"] == []
    assert found["kernels"]["cpu"] == ""
    assert "torch.export" in found["kernels"]["scan"]
    assert found["machine"].keys() >= {"processor", "isa", "torch", "rnnorm", "python", "triton"}
    lines = [(line["kernel"], line["cell"], line["norm"], line["cases"]) for line in found["lines"]]
    assert lines == [
        ("cpu", "LSTM", "batch", 4),
        ("cpu", "GRU", "layer", 1),
        ("cpu", "RNN relu", "layer", 1),
        ("cpu", "GRU", "none", 1),
    ]
    assert all(0 < line["worst"] <= found["limit"] for line in found["lines"])
    (times,) = found["times"]
    assert times.pop("shape") == str(shape)
    assert times.keys() == {"torch.nn", "reference", "cpu"}
    assert min(times.values()) > 0
    assert said[-1] == found["summary"]
    assert said[-1].startswith("rnnorm check: passed (7 cases of cpu")
    assert f"torch {torch.__version__}" in said[-1]
    assert [path.name for path in file.parent.iterdir()] == ["check.json"]


def test_the_reference_itself_passes(monkeypatch, tmp_path):
    with_kernel(monkeypatch, reference.layer)
    assert examined(tmp_path, CASES)[0]


@pytest.mark.parametrize("wrong", [1.001, math.nan])
@pytest.mark.parametrize("name", ["weight_hh", "bias_ih"])
def test_one_wrong_gradient_is_named(monkeypatch, tmp_path, capsys, name, wrong):
    def layer(call):
        own = Changed.apply(getattr(call.weights, name), lambda grad: wrong * grad)
        return reference.layer(call._replace(weights=call.weights._replace(**{name: own})))

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    assert {fault["tensor"] for fault in found["faults"]} == {f"d {name}_l0"}
    assert [fault["case"] for fault in found["faults"]] == [str(case) for case in TRAINING]
    assert found["lines"][0]["failed"] == 2
    assert (found["lines"][0]["worst"] is None) == math.isnan(wrong)
    said = capsys.readouterr().out
    assert f"made LSTM batch dense 3x5x2x4 float32: d {name}_l0 is" in said
    assert said.splitlines()[-1].startswith("rnnorm check: FAILED (2 of 2 cases of made")


def test_a_wrong_statistic_is_named(monkeypatch, tmp_path):
    def layer(*arguments):
        output, state, taken = reference.layer(*arguments)
        mean, var = taken["cell"]
        return output, state, taken | {"cell": (mean, 1.0001 * var)}

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    assert {fault["tensor"] for fault in found["faults"]} == {"population_cell_l0.var"}


def test_memory_that_is_not_written_is_found(monkeypatch, tmp_path):
    def layer(*arguments):
        output, state, taken = reference.layer(*arguments)
        # zero wherever this memory happens to be zero, which a fresh page is
        return output + 0 * torch.empty_like(output), state, taken

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    assert {("output", "is not finite")} <= {(f["tensor"], f["what"]) for f in found["faults"]}
    assert not torch.are_deterministic_algorithms_enabled()


def test_padding_that_is_read_is_found(monkeypatch, tmp_path):
    def layer(call):
        output, state, taken = reference.layer(call)
        return output + 0 * call.x.sum(), state, taken

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    assert {fault["case"] for fault in found["faults"]} == {str(TRAINING[1])}


def test_runs_that_differ_are_found(monkeypatch, tmp_path):
    runs = iter(range(1000))

    def layer(*arguments):
        output, (h, c), taken = reference.layer(*arguments)
        # the last bit, now and then
        return output, (torch.where(h == h.max(), h * (1 + next(runs) % 2 * 2e-7), h), c), taken

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    faults = {(fault["tensor"], fault["what"]) for fault in found["faults"]}
    assert ("h_n", "differs from run to run") in faults


def test_outputs_without_a_gradient_are_examined_too(monkeypatch, tmp_path):
    def layer(*arguments):
        output, state, taken = reference.layer(*arguments)
        return (output if torch.is_grad_enabled() else 1.01 * output), state, taken

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path, CASES)
    assert not passed
    assert {fault["tensor"] for fault in found["faults"]} == {"output without a gradient"}
    assert {fault["case"] for fault in found["faults"]} == {str(case) for case in EVALUATION}


def test_what_a_kernel_raises_is_a_fault_of_it(monkeypatch, tmp_path):
    def layer(*arguments):
        raise RuntimeError("illegal memory access\nand more")

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    said = {fault["what"] for fault in found["faults"]}
    assert said == {"raised RuntimeError: illegal memory access"}


def test_a_wrong_kernel_is_not_timed(monkeypatch, tmp_path):
    def layer(*arguments):
        output, state, taken = reference.layer(*arguments)
        return 1.01 * output, state, taken

    with_kernel(monkeypatch, layer)
    file = tmp_path / "check.json"
    assert not check(cases=TRAINING, timed=[SHAPE], seconds=1e-3, out=file)
    (times,) = json.loads(file.read_text())["times"]
    assert times.keys() == {"shape", "torch.nn", "reference"}


@pytest.mark.parametrize("stale", [True, False])
def test_a_graph_that_keeps_old_results_is_found(monkeypatch, stale):
    """Without a GPU what is captured is a stand-in; only what is made of it is tested."""

    def captured(step):
        kept = step()
        return (lambda: kept) if stale else step

    drawn = draw(TRAINING[0])
    eager = drawn.results("reference")
    replay = bench_examine._replayed(drawn, "reference", captured)
    same = [bench_examine._same_bits(replay[name], eager[name]) for name in eager]
    assert all(same) != stale
    verdict = bench_examine._verdict(
        eager, [eager], lambda found: dict.fromkeys(found, 1.0), [eager], [eager, replay]
    )
    assert (("output", "differs where a CUDA graph is replayed") in verdict.faults) == stale


@pytest.mark.parametrize("stale", [True, False])
def test_a_kernel_whose_own_graphs_keep_old_results_is_found(monkeypatch, stale):
    calls = []

    def layer(*arguments):
        output, state, taken = reference.layer(*arguments)
        calls.append(output.detach())
        if stale and len(calls) > graphs.SIGHTINGS:
            output = 0 * output + calls[0]
        return output, state, taken

    with_kernel(monkeypatch, layer)
    drawn = draw(EVALUATION[0])
    expected = drawn.results("reference")
    replay = bench_examine._replayed(drawn, "made", repeated)
    same = [bench_examine._same_bits(replay[name], expected[name]) for name in expected]
    assert all(same) != stale


def test_without_graphs_a_kernel_is_asked_for_none(monkeypatch):
    for before in (None, "1"):
        if before:
            monkeypatch.setenv(graphs.SWITCH, before)
        with without_graphs():
            assert graphs.here(torch.device("cuda")) is None
            assert os.environ[graphs.SWITCH] == "0"
        assert os.environ.get(graphs.SWITCH) == before


def test_what_no_kernel_covers_is_no_pass(monkeypatch, capsys):
    with_kernel(monkeypatch, reference.layer, unavailable="it was not built: no compiler")
    assert not check(cases=TRAINING, timed=())
    said = capsys.readouterr().out
    assert "made: it was not built: no compiler" in said
    assert said.splitlines()[-1].startswith("rnnorm check: NOTHING TO EXAMINE")


def test_a_kernel_is_asked_for_what_it_covers_alone(monkeypatch, tmp_path):
    def refuses(request):
        return "" if request.training else "it only trains"

    with_kernel(monkeypatch, reference.layer, refuses)
    passed, found = examined(tmp_path, CASES)
    assert passed
    assert [line["cases"] for line in found["lines"]] == [2]


def test_every_layer_is_examined():
    cases = list(all_cases())
    assert list(dict.fromkeys(case[:2] for case in cases)) == layers()
    assert ("GRU", "joint") not in layers()
    whole = [case for case in cases if case[:2] == ("LSTM", "batch")]
    for H in (13, 128):
        for B in (5, 100, 129, 300):
            modes = {c.mode for c in whole if (c.shape.B, c.shape.H) == (B, H)}
            assert modes >= {"dense", "ragged", "evaluation", "ages"}
    assert {case.mode for case in whole if case.shape.H == 1000} == modes
    dtypes = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
    assert {case.dtype for case in whole} == dtypes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_one_line(capsys):
    assert main(["check", "--device", "cuda"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("rnnorm check: --device cuda: torch")


@pytest.mark.parametrize("passed", [True, False])
def test_the_command(monkeypatch, passed):
    asked = {}

    def check(device, **given):
        asked.update(given, device=device)
        return passed

    monkeypatch.setattr(bench_check, "check", check)
    assert main(["check", "--out", "x.json"]) == (0 if passed else 1)
    assert asked == {"device": "cpu", "out": "x.json"}


def test_an_interruption_leaves_no_file(monkeypatch, tmp_path, capsys):
    def layer(*arguments):
        raise KeyboardInterrupt

    with_kernel(monkeypatch, layer)
    file = tmp_path / "out" / "check.json"
    assert main(["check", "--out", str(file)]) == 130
    assert not list(file.parent.iterdir())
    assert capsys.readouterr().err == ""
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_folder_is_no_file(tmp_path, capsys):
    assert main(["check", "--out", str(tmp_path)]) == 1
    assert "is a folder: name a file" in capsys.readouterr().err


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'tpu'"):
        check("tpu")
