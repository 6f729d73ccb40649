"""Benchmarks verify before they time, and write down what they ran on. No time is asserted."""

import csv
import os
import subprocess
import sys
from argparse import ArgumentParser
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from torch.optim.optimizer import register_optimizer_step_post_hook

import rnnorm
from rnnorm.experiments.bench import bench as module
from rnnorm.experiments.bench import recipes as bench_recipes
from rnnorm.experiments.bench.layers import Shape, Variant, VerificationError, prepare, read_shape
from rnnorm.experiments.bench.recipes import put_on_torch
from rnnorm.experiments.bench.timing import interleave, torch_threads
from rnnorm.experiments.commands.cli import main
from rnnorm.kernels import dispatch, reference

MACHINE = {"processor", "isa", "threads", "malloc", "torch", "rnnorm", "python"}
SHAPE = Shape(4, 3, 2, 5)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def with_kernel(monkeypatch, unavailable="", wrong=0.0):
    """Puts the reference in the place of the compiled kernel, with a mistake in its output."""

    def layer(*arguments):
        output, state, taken, states = reference.layer(*arguments)
        return output * (1 + wrong), state, taken, states

    kernel = dispatch.Kernel("cpu", unavailable, lambda request: "", layer, traceable=False)
    kernels = [kernel if k.name == "cpu" else k for k in dispatch.KERNELS]
    monkeypatch.setattr(dispatch, "KERNELS", tuple(kernels))


def forbid_timing(monkeypatch, module):
    def interleave(*_, **__):
        raise AssertionError("timed before it was verified")

    monkeypatch.setattr(module, "interleave", interleave)


def test_layers(capsys, tmp_path):
    arguments = ["--shape", "4x3x2x5", "--seconds", "0.001", "--threads", "1"]
    assert main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert torch.__version__ in said.splitlines()[0]
    assert "\naten: torch.nn has no normalised recurrence\n" in said
    records = read(tmp_path / "out" / "bench.csv")
    covered = {("none", "aten"), ("none", "reference"), ("batch", "reference")}
    covered.add(("layer", "reference"))
    if not rnnorm.backends()["cpu"]:
        covered |= {("none", "cpu"), ("batch", "cpu")}
    assert covered <= {(r["norm"], r["backend"]) for r in records}
    lines = {(r["cell"], r["mode"]) for r in records}
    assert lines == {(c, m) for c in ("LSTM", "GRU", "RNN") for m in ("training", "evaluation")}
    for record in records:
        assert record.keys() >= MACHINE
        assert record["shape"] == "4x3x2x5"
        assert float(record["ratio"]) > 0
        assert float(record["seconds"]) > 0
        assert record["threads"] == "1"
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_recipes(capsys, tmp_path, tiny):
    names = ["demo/digits-lstm", "demo/digits-bn"]
    options = ["--seconds", "0.001", "--out", "out", *tiny]
    assert main(["bench", *names, *options]) == 0
    assert "ratio to the first" in capsys.readouterr().out
    records = read(tmp_path / "cwd/out/bench-recipes.csv")
    assert [r["recipe"] for r in records] == names
    assert float(records[0]["ratio"]) == 1.0
    for record in records:
        assert record.keys() >= MACHINE
        assert record["ratio_to"] == names[0]
        assert float(record["seconds"]) > 0
        assert record["backend"] == ""
    assert records[0]["kernels"] == "aten"


def test_recipes_on_one_kernel(capsys, tmp_path, tiny):
    options = ["--seconds", "0.001", "--backend", "reference", "--out", "out", *tiny]
    assert main(["bench", "demo/digits-lstm", "demo/digits-bn", *options]) == 0
    records = read(tmp_path / "cwd/out/bench-recipes.csv")
    assert {(r["backend"], r["kernels"]) for r in records} == {("reference", "reference")}
    options[3] = "refrence"
    assert main(["bench", "demo/digits-lstm", *options]) == 1
    assert "backend must be one of aten, " in capsys.readouterr().err


def test_the_first_recipe_on_layers_of_torch(capsys, tmp_path, tiny):
    names = ["demo/digits-lstm", "demo/digits-bn"]
    options = ["--seconds", "0.001", "--on-torch", "--out", "out", *tiny]
    options.append("--model.init_args.initial_noise=0")
    assert main(["bench", *names, *options]) == 0
    records = read(tmp_path / "cwd/out/bench-recipes.csv")
    assert [r["recipe"] for r in records] == ["demo/digits-lstm on torch.nn", *names]
    assert {r["ratio_to"] for r in records} == {"demo/digits-lstm on torch.nn"}
    assert [r["kernels"] for r in records][:2] == ["torch.nn", "aten"]
    assert main(["bench", *reversed(names), *options]) == 1
    assert "torch.nn has no such layer as rnn: LSTM" in capsys.readouterr().err


def test_a_model_is_the_same_on_layers_of_torch():
    torch.manual_seed(0)
    parts = {
        "lstm": rnnorm.LSTM(3, 4, 2, bidirectional=True),
        "gru": rnnorm.GRU(8, 5, bias=False),
        "rnn": rnnorm.RNN(5, 6, nonlinearity="relu"),
    }
    ours, lengths = torch.nn.ModuleDict(parts).double(), torch.tensor([2, 7, 5])
    theirs = deepcopy(ours)
    put_on_torch(theirs)
    x = torch.randn(9, 3, 3).double()
    results = []
    for net in (ours, theirs):
        net.zero_grad()
        y, state = net["lstm"](x, lengths=lengths, step=0)
        y, last = net["gru"](y, torch.ones(1, 3, 5).double(), lengths=lengths)
        y, _ = net["rnn"](y)
        y.sum().backward()
        results.append([y, *state, last, *(p.grad for p in net.parameters())])
    torch.testing.assert_close(*results)
    assert all(isinstance(theirs[name], getattr(torch.nn, name.upper())) for name in theirs)


@pytest.mark.parametrize(
    "layer",
    [
        rnnorm.LSTM(3, 4, norm="layer"),
        rnnorm.LSTM(3, 4, initial_noise=0.1),
        rnnorm.LSTM(3, 4, learn_initial_state=True),
        rnnorm.LSTM(3, 4, peephole="all"),
        rnnorm.GRU(3, 4, reset_after=False),
        rnnorm.HMLSTM(3, 4),
        rnnorm.LSTM(3, 4, recurrent_dropout=rnnorm.Zoneout()),
    ],
)
def test_what_torch_has_not_is_refused(layer):
    with pytest.raises(ValueError, match="no such layer as 0"):
        put_on_torch(torch.nn.Sequential(layer))


def test_recipes_with_a_schedule_and_states_that_go_on(sentences):
    names = ["laurent2015/ptb-word-small-lstm", "laurent2015/ptb-word-small-bn"]
    overrides = [
        "--trainer.accelerator=cpu",
        "--model.init_args.vocabulary_size=11",
        "--model.init_args.dropout=0.5",
        "--data.init_args.length=5",
        "--data.init_args.batch_size=4",
    ]
    records = bench_recipes.bench_recipes(
        names, data_dir=sentences, scale="small", seconds=0.001, overrides=overrides
    )
    assert [r["scale"] for r in records] == ["small", "small"]


def test_an_optimiser_that_evaluates_several_times_a_step(tiny):
    records = bench_recipes.bench_recipes(
        ["demo/digits-lstm"], seconds=0.001, overrides=[*tiny, "--optimizer=LBFGS"]
    )
    assert float(records[0]["seconds"]) > 0


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_a_recipe_of_another_precision(tiny, precision):
    overrides = [*tiny, f"--trainer.precision={precision}"]
    records = bench_recipes.bench_recipes(
        ["demo/digits-lstm"], seconds=0.001, on_torch=True, overrides=overrides
    )
    assert [record["recipe"] for record in records] == [
        "demo/digits-lstm on torch.nn",
        "demo/digits-lstm",
    ]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32-true", None), ("bf16-mixed", torch.bfloat16)]
)
def test_a_step_of_a_recipe_runs_in_the_trainers_precision(tiny, precision, dtype):
    seen = set()

    def see(layer, *_):
        if isinstance(layer, torch.nn.Linear) and torch.is_grad_enabled():
            here = torch.is_autocast_enabled("cpu")
            seen.add(torch.get_autocast_dtype("cpu") if here else None)

    overrides = [*tiny, f"--trainer.precision={precision}"]
    handle = torch.nn.modules.module.register_module_forward_hook(see)
    try:
        bench_recipes.bench_recipes(["demo/digits-lstm"], seconds=0.001, overrides=overrides)
    finally:
        handle.remove()
    assert seen == {dtype}


def test_a_step_of_a_recipe_takes_as_many_minibatches_as_the_trainer_accumulates(tiny):
    taken, updates = [], []

    def see(layer, *_):
        if isinstance(layer, torch.nn.Linear) and torch.is_grad_enabled():
            taken.append(layer)

    overrides = [*tiny, "--trainer.accumulate_grad_batches=3"]
    handles = [
        torch.nn.modules.module.register_module_forward_hook(see),
        register_optimizer_step_post_hook(lambda *_: updates.append(1)),
    ]
    try:
        bench_recipes.bench_recipes(["demo/digits-lstm"], seconds=0.001, overrides=overrides)
    finally:
        for handle in handles:
            handle.remove()
    assert len(taken) == 3 * len(updates) > 0


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("devices=2", "devices must be 1 except in rnnorm fit, got 2"),
        ("num_nodes=3", "devices must be 1 except in rnnorm fit, got 3"),
        ("accumulate_grad_batches=0", "accumulate_grad_batches must be above 0"),
    ],
)
def test_a_trainer_that_the_step_of_a_recipe_cannot_have_is_refused(tiny, option, reason):
    with pytest.raises(ValueError, match=reason):
        bench_recipes.bench_recipes(["demo/digits-lstm"], overrides=[*tiny, f"--trainer.{option}"])


def test_the_picture_of_recipes_says_that_paper_is_a_scale(monkeypatch, tmp_path, tiny):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    bench_recipes.bench_recipes(["demo/digits-lstm"], seconds=0.001, out=tmp_path, overrides=tiny)
    (text,) = drawn[0].axes[0].get_legend().get_texts()
    assert text.get_text() == "paper scale"


def test_a_step_of_a_recipe_is_clipped_and_taken_by_its_optimiser(monkeypatch, tiny):
    changes = []

    def once(steps, seconds):
        (step,) = steps.values()
        parameters = step()
        before = [p.detach().clone() for p in parameters]
        step()
        changes.extend((a - b).detach() for a, b in zip(before, parameters, strict=True))
        return interleave(steps, 1e-9, fewest=1)

    monkeypatch.setattr(bench_recipes, "interleave", once)
    overrides = ["--optimizer=torch.optim.SGD", "--optimizer.init_args.lr=1"]
    overrides += [*tiny, "--trainer.gradient_clip_val=1e-3"]
    bench_recipes.bench_recipes(["demo/digits-bn"], overrides=overrides)
    change = torch.cat([c.flatten() for c in changes])
    assert change.norm().item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("wrong", [0.01, float("nan")])
def test_a_wrong_result_is_refused(monkeypatch, train, wrong):
    with_kernel(monkeypatch, wrong=wrong)
    with pytest.raises(VerificationError, match=r"LSTM 4x3x2x5.*output differs from the reference"):
        prepare("LSTM", SHAPE, [Variant("batch", "cpu")], train=train)


def test_a_wrong_gradient_is_refused(monkeypatch):
    class WrongGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return 1.01 * grad

    def layer(*arguments):
        output, state, taken, states = reference.layer(*arguments)
        return WrongGradient.apply(output), state, taken, states

    with_kernel(monkeypatch)
    kernel = dispatch.Kernel("cpu", "", lambda request: "", layer, traceable=False)
    monkeypatch.setattr(dispatch, "KERNELS", (kernel, dispatch.KERNELS[-1]))
    prepare("LSTM", SHAPE, [Variant("batch", "cpu")], train=False)
    with pytest.raises(VerificationError, match="_l0 differs"):
        prepare("LSTM", SHAPE, [Variant("batch", "cpu")], train=True)


def test_nothing_is_timed_after_a_wrong_result(monkeypatch, capsys, tiny):
    with_kernel(monkeypatch, wrong=0.01)
    forbid_timing(monkeypatch, module)
    forbid_timing(monkeypatch, bench_recipes)
    assert main(["bench", "--shape", "4x3x2x5"]) == 1
    assert "nothing was timed" in capsys.readouterr().err
    assert main(["bench", "demo/digits-bn", *tiny]) == 1
    assert "demo/digits-bn: rnn differs" in capsys.readouterr().err


def test_a_kernel_that_crashes_is_not_one_that_is_missing(monkeypatch):
    def crash(*_):
        raise RuntimeError("it crashed")

    kernel = dispatch.Kernel("cpu", "", lambda request: "", crash, traceable=False)
    monkeypatch.setattr(dispatch, "KERNELS", (kernel, dispatch.KERNELS[-1]))
    with pytest.raises(RuntimeError, match="it crashed"):
        module.bench([SHAPE], seconds=0.001)


def test_a_missing_backend_is_a_line_that_says_why(monkeypatch, capsys):
    with_kernel(monkeypatch, unavailable="it was not built: no C++ compiler")
    assert main(["bench", "--shape", "4x3x2x5", "--seconds", "0.001"]) == 0
    said = capsys.readouterr().out
    assert said.count("it was not built: no C++ compiler") == 1
    assert " cpu" not in said.split("ratio to torch.nn's class")[1]


def test_a_single_row_is_evaluated_with_statistics():
    # warnings are errors: without statistics there would be one
    steps = prepare("LSTM", Shape(1, 1, 3, 4), [Variant("batch")], train=False)
    assert list(steps) == ["torch.nn", "batch"]
    assert all(step()["output"].shape == (1, 1, 4) for step in steps.values())


def test_a_ragged_batch_is_prepared():
    shape = Shape(25, 4, 2, 3, shortest=20, layers=2, bidirectional=True)
    steps = prepare("GRU", shape, [Variant("batch")], train=True)
    sizes = {len(step()["output"]) for step in steps.values()}
    assert len(sizes) == 1
    assert 4 * 20 <= sizes.pop() <= 4 * 25


def test_functions_run_in_turn_and_the_ratio_is_to_the_first():
    order = []
    timings = interleave({n: lambda n=n: order.append(n) for n in "ab"}, 1e-9, fewest=3)
    assert order == list("ab" * 4)
    assert timings["a"].ratio == 1.0
    assert timings["a"].rounds == 3
    assert timings["b"].seconds > 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_of_a_step_holds_what_backward_reads():
    code = """
import torch, rnnorm
from benchmarks.train_step import kept_bytes, peak_bytes
layer, x = rnnorm.LSTM(8, 64, norm="batch"), torch.randn(400, 64, 8)
print(kept_bytes(layer, x), peak_bytes(layer, x))
"""
    # this process keeps memory that a step could take without any more
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=Path(__file__).parents[3]
    )
    kept, peak = map(int, said.stdout.split())
    # W_h h, c and h of every frame, but for what lay ready; then gradients and scratch memory
    frames = 4 * 400 * 64 * (4 * 64 + 64 + 64)
    assert 0.7 * frames < kept < 2 * frames
    assert peak < 4 * frames


def test_threads_are_given_back():
    before, cores = torch.get_num_threads(), os.cpu_count()
    with torch_threads(cores):
        assert torch.get_num_threads() == cores
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("text", ["4x3x2", "4x0x2x5", "4,3,2,5", "ax3x2x5", "4x1x2x5"])
def test_a_shape_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=f"shape must .*{text!r}"):
        read_shape(text)


def test_a_script_says_why_a_shape_is_refused(capsys):
    parser = ArgumentParser()
    parser.add_argument("--shape", type=read_shape)
    with pytest.raises(SystemExit):
        parser.parse_args(["--shape=4x1x2x5"])
    assert "a shape must have 2 rows or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("chaos", ["--steps", "0"], "--steps and --seeds must be 1 or more"),
        ("clockwork", ["--repeats", "0"], "--repeats must be 1 or more, got 0"),
        ("resets", ["--share", "2"], "--share must be from 0 to 1, got 2.0"),
        ("train_step", ["--out", __file__], "is not a folder: it is a file"),
    ],
)
def test_a_script_refuses_an_argument_before_it_times(script, arguments, said):
    root = Path(__file__).parents[3]
    words = [sys.executable, f"benchmarks/{script}.py", *arguments]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=root)
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--threads", "0"], "threads must be from 1 to "),
        (["--threads", "1000000"], "the machine's cores, got 1000000"),
        (["--seconds", "0", "--shape", "4x3x2x5"], "seconds must be positive and finite, got 0"),
        (["--seconds", "inf"], "seconds must be positive and finite, got inf"),
        (["--scale", "small"], "are of recipes"),
        (["--on-torch"], "are of recipes"),
        (["--backend", "cpu"], "are of recipes"),
        (["demo/digits-bn", "--shape", "4x3x2x5"], "--shape is of layers"),
        (["demo/digits-bn", "demo/digits-bn"], "each recipe must be named once"),
        (
            ["demo/digits-bn", "--trainer.gradient_clip_algorithm=max"],
            "trainer.gradient_clip_algorithm must be value or norm, got 'max'",
        ),
    ],
)
def test_bad_arguments_are_told(arguments, said, capsys):
    assert main(["bench", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_misspelt_recipe_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "digits"])
    assert "demo/digits-bn" in capsys.readouterr().err
