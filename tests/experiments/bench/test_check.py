"""The check of the kernels passes where they are right, and names what is wrong where not."""

import errno
import json
import math
import os
import re

import pytest
import torch

import rnnorm
from rnnorm.experiments.bench import check as bench_check
from rnnorm.experiments.bench import compare_kernels as bench_examine
from rnnorm.experiments.bench.cases import CELLS, Case, all_cases, draw, layers
from rnnorm.experiments.bench.check import check
from rnnorm.experiments.bench.layers import Shape
from rnnorm.experiments.bench.timing import repeated, without_graphs
from rnnorm.experiments.commands.cli import main
from rnnorm.kernels import cuda_graphs, dispatch, reference
from rnnorm.kernels.call import UncoveredError

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
        *("passed", "summary", "machine", "limit", "examined", "cases"),
        *("kernels", "lines", "faults", "times"),
    }
    assert found["passed"] is True
    assert found["faults"] == []
    assert found["examined"] == found["cases"] == 7
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


@pytest.mark.parametrize("wrong", [1.0001, math.nan])
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
        output, state, taken, states = reference.layer(*arguments)
        mean, var = taken["cell"]
        return output, state, taken | {"cell": (mean, 1.0001 * var)}, states

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    assert {fault["tensor"] for fault in found["faults"]} == {"population_cell_l0.var"}


ROUNDED = [
    Case("LSTM", "batch", "dense", Shape(4, 5, 7, 13)),
    Case("LSTM", "layer", "evaluation", Shape(3, 5, 7, 128)),
    Case("GRU", "bn-e*", "ragged", Shape(3, 100, 7, 128)),
    Case("RNN", "joint", "ragged", Shape(4, 5, 7, 13)),
    Case("RNN relu", "batch", "dense", Shape(4, 129, 7, 13)),
    Case("GRU", "layer", "ragged", Shape(4, 100, 7, 13), torch.bfloat16),
]


def small_faults(name, right, gates):
    """A tensor that is off by a ten thousandth, in all or in one gate, and more at one entry."""
    yield (1 + 1e-4) * right
    for entry in (right.abs().argmax(), 0):
        wrong = right.flatten().clone()
        wrong[entry] += 3e-4 * (wrong[entry].abs() + wrong.double().norm() / len(wrong) ** 0.5)
        yield wrong.view_as(right)
    if name.startswith(("d weight", "d bias")):
        for gate in range(gates):
            wrong = right.clone()
            wrong.chunk(gates)[gate].mul_(1 + 1e-4)
            yield wrong


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_rounding_is_no_fault_and_a_ten_thousandth_is_one(case, seed):
    drawn = draw(case, seed)
    exact = bench_examine.exact_results(drawn)
    scale = bench_examine.scales(case, drawn, exact)
    for backend in ("reference", "cpu"):
        if rnnorm.backends()[backend]:
            continue
        found = drawn.results(backend)
        multiples = bench_examine.multiples(found, exact, scale)
        assert max(multiples.values()) < bench_examine.LIMIT / 2
        if case.dtype != torch.float32:
            continue
        for name, right in found.items():
            gates = {"LSTM": 4, "GRU": 3}.get(case.cell, 1)
            for wrong in small_faults(name, right, gates) if right.is_floating_point() else ():
                multiples = bench_examine.multiples(found | {name: wrong}, exact, scale)
                assert multiples[name] > bench_examine.LIMIT


def test_a_step_whose_gradient_is_dropped_is_found(monkeypatch, tmp_path):
    def layer(*arguments):
        output, state, taken, states = reference.layer(*arguments)
        steps = torch.ones(len(output), 1, 1)
        steps[1] = 0
        return Changed.apply(output, lambda grad: grad * steps), state, taken, states

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path, TRAINING[:1])
    assert not passed
    assert "d weight_hh_l0" in {fault["tensor"] for fault in found["faults"]}


def test_a_rectifier_is_drawn_with_no_input_near_zero():
    for seed in range(20):
        drawn = draw(Case("RNN relu", "none", "dense", Shape(4, 129, 7, 13)), seed)
        # of what passes; an input on the other side of zero is as likely
        output = bench_examine.exact_results(drawn)["output"]
        assert output[output > 0].min() > 1e-5


def test_memory_that_is_not_written_is_found(monkeypatch, tmp_path):
    def layer(*arguments):
        output, state, taken, states = reference.layer(*arguments)
        # zero wherever this memory happens to be zero, which a fresh page is
        return output + 0 * torch.empty_like(output), state, taken, states

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    assert {("output", "is not finite")} <= {(f["tensor"], f["what"]) for f in found["faults"]}
    assert not torch.are_deterministic_algorithms_enabled()


def test_padding_that_is_read_is_found(monkeypatch, tmp_path):
    def layer(call):
        output, state, taken, states = reference.layer(call)
        return output + 0 * call.x.sum(), state, taken, states

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    assert {fault["case"] for fault in found["faults"]} == {str(TRAINING[1])}


def test_runs_that_differ_are_found(monkeypatch, tmp_path):
    runs = iter(range(1000))

    def layer(*arguments):
        output, (h, c), taken, states = reference.layer(*arguments)
        # the last bit, now and then
        return (
            output,
            (torch.where(h == h.max(), h * (1 + next(runs) % 2 * 2e-7), h), c),
            taken,
            states,
        )

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path)
    assert not passed
    faults = {(fault["tensor"], fault["what"]) for fault in found["faults"]}
    assert ("h_n", "differs from run to run") in faults


def test_outputs_without_a_gradient_are_examined_too(monkeypatch, tmp_path):
    def layer(*arguments):
        output, state, taken, states = reference.layer(*arguments)
        return (output if torch.is_grad_enabled() else 1.01 * output), state, taken, states

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
        output, state, taken, states = reference.layer(*arguments)
        return 1.01 * output, state, taken, states

    with_kernel(monkeypatch, layer)
    file = tmp_path / "check.json"
    assert not check(cases=TRAINING, timed=[SHAPE], seconds=1e-3, out=file)
    (times,) = json.loads(file.read_text())["times"]
    assert times.keys() == {"shape", "torch.nn", "reference"}


def test_a_call_that_a_kernel_does_not_take_is_no_fault(monkeypatch, tmp_path):
    def layer(call):
        if call.batch_sizes is not None:
            raise UncoveredError("it takes rows of one length")
        return reference.layer(call)

    with_kernel(monkeypatch, layer)
    passed, found = examined(tmp_path, TRAINING)
    assert passed
    assert not found["faults"]


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
        output, state, taken, states = reference.layer(*arguments)
        calls.append(output.detach())
        if stale and len(calls) > cuda_graphs.SIGHTINGS:
            output = 0 * output + calls[0]
        return output, state, taken, states

    with_kernel(monkeypatch, layer)
    drawn = draw(EVALUATION[0])
    expected = drawn.results("reference")
    replay = bench_examine._replayed(drawn, "made", repeated)
    same = [bench_examine._same_bits(replay[name], expected[name]) for name in expected]
    assert all(same) != stale


def test_without_graphs_a_kernel_is_asked_for_none(monkeypatch):
    for before in (None, "1"):
        if before:
            monkeypatch.setenv(cuda_graphs.SWITCH, before)
        with without_graphs():
            assert cuda_graphs.current_graphs(torch.device("cuda")) is None
            assert os.environ[cuda_graphs.SWITCH] == "0"
        assert os.environ.get(cuda_graphs.SWITCH) == before


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


def test_a_check_out_of_time_has_examined_a_case_of_each_layer(monkeypatch, tmp_path, capsys):
    with_kernel(monkeypatch, reference.layer)
    cases = [Case(cell, "layer", "dense", SHAPE) for cell in ("LSTM", "GRU", "GRU", "LSTM")]
    file = tmp_path / "check.json"
    with pytest.raises(bench_check.OutOfTimeError, match="2 of 4 cases were not examined"):
        check(cases=cases, timed=(), out=file, budget=0)
    found = json.loads(file.read_text())
    assert (found["passed"], found["examined"], found["cases"]) == (False, 2, 4)
    assert [line["cell"] for line in found["lines"]] == ["LSTM", "GRU"]
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("rnnorm check: OUT OF TIME (nothing wrong in 2 cases of made")
    assert "2 more cases NOT EXAMINED" in said


def test_faults_that_are_not_printed_are_said_to_be_in_the_file(monkeypatch, capsys):
    def layer(*arguments):
        raise RuntimeError("illegal memory access")

    with_kernel(monkeypatch, layer)
    cases = [Case("LSTM", "batch", "dense", SHAPE._replace(B=B)) for B in range(2, 24)]
    assert not check(cases=cases, timed=())
    assert "and 2 more cases: --out FILE keeps all of them" in capsys.readouterr().out


def test_a_fault_found_out_of_time_is_a_fault(monkeypatch, tmp_path, capsys):
    def layer(*arguments):
        output, state, taken, states = reference.layer(*arguments)
        return 1.01 * output, state, taken, states

    with_kernel(monkeypatch, layer)
    assert not check(cases=CASES, timed=(), budget=0)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("rnnorm check: FAILED (1 of 1 cases")
    assert "3 more cases NOT EXAMINED" in said


@pytest.mark.parametrize("budget", [-1.0, math.nan])
def test_a_budget_is_no_negative_number(budget):
    with pytest.raises(ValueError, match="seconds of examining must be 0 or more"):
        check(cases=CASES, budget=budget)


def test_progress_is_told_at_intervals_without_a_terminal(monkeypatch, capsys):
    with_kernel(monkeypatch, reference.layer)
    monkeypatch.setattr(bench_check, "_QUIET", 0.0)
    assert check(cases=CASES, timed=())
    said = capsys.readouterr()
    assert any(re.fullmatch(r"3 of 4 cases, \d+ s", line) for line in said.out.splitlines())
    assert said.err == ""


def test_every_layer_is_examined():
    cases = list(all_cases())
    first = cases[: len(layers())]
    assert [case[:2] for case in first] == layers()
    assert len(cases) == len(set(cases)) == 1210
    assert list(dict.fromkeys(case[:2] for case in cases)) == layers()
    assert ("GRU", "joint") not in layers()
    # with all gates in one block, both names say the same
    assert ("GRU", "haste") in layers()
    assert ("LSTM", "haste") not in layers()
    anew = {case.cell for case in cases if case.mode == "resets"}
    assert anew == {*CELLS}
    # over many steps layer norm enlarges rounding until nothing is alike
    assert max(case.shape.T for case in cases) <= 4
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
    assert main(["check", "--out", "x.json", "--seconds", "9"]) == (0 if passed else 1)
    assert asked == {"device": "cpu", "out": "x.json", "budget": 9.0}


def test_the_command_out_of_time_has_a_status_of_its_own(monkeypatch):
    def check(device, **given):
        raise bench_check.OutOfTimeError

    monkeypatch.setattr(bench_check, "check", check)
    assert main(["check"]) == 3


def test_an_interruption_leaves_no_file(monkeypatch, tmp_path, capsys):
    def layer(*arguments):
        raise KeyboardInterrupt

    with_kernel(monkeypatch, layer)
    file = tmp_path / "out" / "check.json"
    assert main(["check", "--out", str(file)]) == 130
    assert not list(file.parent.iterdir())
    assert capsys.readouterr().err == ""
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_verdict_is_told_even_if_its_file_cannot_be_written(monkeypatch, tmp_path, capsys):
    def write(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with_kernel(monkeypatch, reference.layer)
    monkeypatch.setattr(bench_check, "write_whole", write)
    with pytest.raises(OSError, match="No space left on device"):
        check(cases=TRAINING, timed=(), out=tmp_path / "check.json")
    assert "rnnorm check: passed (2 cases of made" in capsys.readouterr().out.splitlines()[-1]


def test_a_folder_is_no_file(tmp_path, capsys):
    assert main(["check", "--out", str(tmp_path)]) == 1
    assert "is a folder: name a file" in capsys.readouterr().err


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["check", "--out", str(tmp_path / "file" / "check.json")]) == 1
    assert "file is not a folder: it is a file" in capsys.readouterr().err


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'tpu'"):
        check("tpu")
