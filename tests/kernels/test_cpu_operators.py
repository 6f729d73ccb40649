"""The CPU kernel as part of torch: operators, compilation, threads, memory."""

import os
import signal
import sys
import threading
import time

import pytest
import torch
from problems import MORE_CELLS, MORE_NORMS, Problem, assert_same
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

import rnnorm
from rnnorm import tracing
from rnnorm.kernels import autograd as passes
from rnnorm.kernels import dispatch, reference
from rnnorm.kernels.cpu import forward
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cpu.short_passes import ShortPasses

RAGGED = [9, 9, 7, 4, 4, 2, 1]


def captured_calls(monkeypatch, problem):
    """The arguments with which a layer calls the forward operator."""
    calls = []

    def record(*arguments):
        calls.append(arguments)
        return operator(*arguments)

    operator = forward.cpu_forward
    monkeypatch.setattr(cpu, "PASSES", cpu.PASSES._replace(forward_operator=record))
    monkeypatch.setattr(passes, "unobserved", lambda tensors: False)
    problem.results(cpu.layer, torch.float64)
    return calls


@pytest.mark.parametrize("norm", ["all", "sequence", "joint", "layer", "none"])
def test_operators_pass_opcheck(monkeypatch, norm):
    (arguments,) = captured_calls(monkeypatch, Problem("LSTM", norm, (3, 4, 2, 5)))
    # what is traced is the same for every norm, and slow: the test below has it
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(forward.cpu_forward, arguments, test_utils=checks)


def test_operators_with_peepholes_and_masks_pass_opcheck(monkeypatch):
    problem = Problem("LSTM-all", "all", (3, 4, 2, 5), dropout="every")
    (arguments,) = captured_calls(monkeypatch, problem)
    torch.library.opcheck(forward.cpu_forward, arguments)


class Seen(TorchDispatchMode):
    """The names of the operators that a block dispatches."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.add(str(operator))
        return operator(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_operators_and_nothing_changes():
    problem = Problem("LSTM", "all", (3, 4, 2, 5))
    alone = problem.results(cpu.layer, torch.float64)
    with Seen() as seen:
        watched = problem.results(cpu.layer, torch.float64)
    assert {"rnnorm.cpu_forward.default", "rnnorm.cpu_backward.default"} <= seen.names
    assert all(torch.equal(watched[name], alone[name]) for name in alone)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_the_kernel_runs(cell, norm):
    before = dispatch.calls["cpu"]
    layer = getattr(rnnorm, cell)(3, 5, norm=norm, num_layers=2, bidirectional=True)
    layer(torch.randn(4, 6, 3))[0].sum().backward()
    assert dispatch.calls["cpu"] == before + 1


@pytest.mark.parametrize(
    ("cell", "arguments"),
    [
        ("LSTM", {"peephole": "output"}),
        ("LSTM", {"peephole": "all", "norm": "layer"}),
        ("LSTM", {"recurrent_dropout": rnnorm.Zoneout(), "norm": "batch"}),
        ("GRU", {"recurrent_dropout": rnnorm.CellDropout()}),
        ("RNN", {"recurrent_dropout": rnnorm.SequenceDropout(hidden=0.5)}),
        ("LSTM", {"proj_size": 2, "norm": "batch"}),
        ("LSTM", {"proj_size": 2, "recurrent_dropout": rnnorm.Zoneout(), "peephole": "output"}),
    ],
)
def test_peepholes_masks_and_projections_run_on_it(cell, arguments):
    before = dispatch.calls["cpu"]
    getattr(rnnorm, cell)(3, 5, **arguments)(torch.randn(4, 6, 3))[0].sum().backward()
    assert dispatch.calls["cpu"] == before + 1


@pytest.mark.parametrize(
    ("cell", "arguments"),
    [
        ("LSTM", {"norm": rnnorm.BatchNorm(carry="frame")}),
        ("LSTM", {"norm": "carry", "peephole": "output"}),
        ("LSTM", {"peephole": "full"}),
        ("GRU", {"recurrent_dropout": rnnorm.CellDropout(), "reset_after": False}),
    ],
)
def test_what_it_does_not_cover_runs_the_reference(cell, arguments):
    before = dispatch.calls["reference"]
    getattr(rnnorm, cell)(3, 5, **arguments)(torch.randn(4, 6, 3))
    assert dispatch.calls["reference"] == before + 1


@pytest.mark.parametrize("lengths", [None, RAGGED], ids=("dense", "ragged"))
@pytest.mark.parametrize(
    ("cell", "norm", "dropout"),
    [
        *(("LSTM", norm, "none") for norm in ("all", "sequence", "joint-cell", "none", "layer")),
        *(
            ("RNN_TANH", norm, "none")
            for norm in ("all", "sequence", "joint-cell", "none", "layer")
        ),
        ("GRU", "layer", "none"),
        *((cell, norm, "every") for cell in ("LSTM-all", "GRU") for norm in ("all", "layer")),
    ],
)
def test_any_number_of_threads_gives_the_same_bits(threads, cell, norm, dropout, lengths):
    assert_same_bits(threads, Problem(cell, norm, (9, 7, 40, 100), lengths, dropout=dropout))


@pytest.mark.parametrize("lengths", [None, RAGGED], ids=("dense", "ragged"))
@pytest.mark.parametrize(
    ("cell", "norm", "resets"),
    [
        *(("LSTM", norm, 0.0) for norm in MORE_NORMS),
        *(("GRU", norm, 0.0) for norm in ("layer-term", "rms", "mixed")),
        *((cell, norm, 0.0) for cell in MORE_CELLS for norm in ("sequence", "mixed")),
        *(
            (cell, norm, 0.3)
            for cell in ("LSTM", "LSTM-all", "GRU", "RNN_RELU", *MORE_CELLS)
            for norm in ("none", "layer", "rms")
        ),
        ("LSTM", "rms-carry-gate", 0.3),
    ],
)
def test_more_norms_cells_and_resets_too(threads, cell, norm, resets, lengths):
    problem = Problem(cell, norm, (9, 7, 40, 100), lengths, dropout="every", resets=resets)
    assert_same_bits(threads, problem)


def assert_same_bits(threads, problem):
    threads(1)
    expected = problem.results(cpu.layer, torch.float32)
    for count in (2, 3, 5, 11):
        threads(count)
        found = problem.results(cpu.layer, torch.float32)
        assert all(torch.equal(found[name], expected[name]) for name in expected), count


def test_concurrent_calls_do_not_disturb_each_other():
    problems = [Problem("LSTM", "all", (20, 8, 5, 24), seed=seed) for seed in range(4)]
    expected = [p.results(cpu.layer, torch.float64) for p in problems]
    failures = []

    def repeat(problem, want):
        try:
            for _ in range(10):
                assert_same(problem.results(cpu.layer, torch.float64), want, 0.0)
        except BaseException as failure:
            failures.append(failure)

    workers = [
        threading.Thread(target=repeat, args=pair) for pair in zip(problems, expected, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def exit_code(child, seconds=60):
    """What a forked child ends with; one that hangs is killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail(f"the child has not ended within {seconds} s")


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_call_it(threads):
    # the pool of threads that the parent has begun is not the child's
    threads(2)
    problem = Problem("LSTM", "all", (5, 8, 5, 40))
    leaves = problem.leaves
    expected, _ = problem.run(cpu.layer, leaves)
    child = os.fork()
    if child == 0:
        found, _ = problem.run(cpu.layer, leaves)
        os._exit(0 if torch.equal(found[0], expected[0]) else 1)
    assert exit_code(child) == 0


@pytest.mark.parametrize("lengths", [None, [4, 4, 3, 3, 2, 1]], ids=("dense", "padded"))
def test_without_gradients_nothing_is_saved(monkeypatch, lengths):
    saves, short = [], ShortPasses.forward

    def record(inputs, options, save, rows):
        saves.append(save)
        return forward.run_forward(inputs, options, save, rows)

    def record_short(call, leaves, save):
        saves.append(save)
        return short(call, leaves, save)

    monkeypatch.setattr(cpu, "PASSES", cpu.PASSES._replace(forward=record))
    monkeypatch.setattr(ShortPasses, "forward", record_short)
    layer = rnnorm.LSTM(3, 5, norm="batch")
    with torch.no_grad():
        layer(torch.randn(4, 6, 3), lengths=lengths)
    assert saves == [False]


def test_a_tensor_changed_after_forward_is_noticed():
    layer = rnnorm.LSTM(3, 5, norm="batch")
    output, _ = layer(torch.randn(4, 6, 3))
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_checkpointing_gives_the_same_gradients():
    layer = rnnorm.LSTM(3, 5, norm="batch", initial_noise=0.0, dtype=torch.float64)
    x = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(layer(x)[0].square().sum(), x)
    output = torch.utils.checkpoint.checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
    (found,) = torch.autograd.grad(output.square().sum(), x)
    torch.testing.assert_close(found, expected)


def test_a_graph_kept_can_be_differentiated_twice():
    problem = Problem("LSTM", "sequence", (4, 6, 8, 20))
    leaves = {name: leaf.requires_grad_() for name, leaf in problem.leaves.items()}
    outputs, _ = problem.run(cpu.layer, leaves)
    loss = sum(o.square().sum() for o in outputs)
    first = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
    second = torch.autograd.grad(loss, list(leaves.values()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_the_third_derivative_is_that_of_the_reference(cell, norm):
    if norm == "batch" and tracing.RELEASE >= (2, 14):
        pytest.skip("torch's batch_norm has no third derivative")
    torch.manual_seed(0)
    options = {"norm": norm, "initial_noise": 0.0, "dtype": torch.float64}
    layer = getattr(rnnorm, cell)(2, 3, **options)
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def third(backend):
        with rnnorm.use_backend(backend):
            derived = layer(x, lengths=[3, 3, 3, 2])[0]
            for _ in range(3):
                (derived,) = torch.autograd.grad(derived.square().sum(), x, create_graph=True)
        return derived

    torch.testing.assert_close(third("cpu"), third("reference"))


@pytest.mark.skipif(tracing.RELEASE < (2, 13), reason="an older graph breaks at every layer")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("cell", "dropout", "lengths"), [("LSTM", "none", None), ("LSTM-all", "every", RAGGED)]
)
def test_compiled_without_a_break(cell, dropout, lengths):
    problem = Problem(cell, "all", (9, 7, 4, 6), lengths, dropout=dropout)
    names = list(problem.leaves)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def outputs(given):
        return problem.run(cpu.layer, dict(zip(names, given, strict=True)))[0]

    leaves = [leaf.clone().requires_grad_() for leaf in problem.leaves.values()]
    found = outputs(leaves)
    gradients = torch.autograd.grad(sum(o.sum() for o in found), leaves)
    expected, _ = problem.run(reference.layer, dict(zip(names, leaves, strict=True)))
    wanted = torch.autograd.grad(sum(o.sum() for o in expected), leaves)
    for got, want in zip((*found, *gradients), (*expected, *wanted), strict=True):
        torch.testing.assert_close(got, want)


def test_no_memory_is_an_exception(monkeypatch):
    class Full:
        @staticmethod
        def rnnorm_forward(layer):
            return 1

    monkeypatch.setattr("rnnorm.kernels.cpu.library._LIBRARY", Full)
    with pytest.raises(MemoryError, match="scratch"):
        Problem("LSTM", "all", (2, 3, 4, 5)).results(cpu.layer, torch.float32)


def test_a_tensor_that_holds_its_numbers_with_the_other_sign_is_read_as_it_is():
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm="layer")
    x, h, upstream = (torch.randn(2, 5, n, dtype=torch.cfloat).conj().imag for n in (3, 4, 4))
    assert upstream.is_neg()
    state = (h[:1], h[1:])
    found, want = [], []
    for results, plain in ((found, False), (want, True)):
        arguments = [each.clone() if plain else each for each in (x, *state, upstream)]
        leaf = arguments[0].requires_grad_()
        output, _ = layer(leaf, tuple(arguments[1:3]))
        results += [output, *torch.autograd.grad(output, (leaf, *layer.parameters()), arguments[3])]
        frozen = rnnorm.freeze(layer.eval())
        with torch.no_grad():
            results.append(frozen(leaf.detach(), tuple(arguments[1:3]))[0])
    torch.testing.assert_close(found, want)


def test_so_is_a_parameter():
    torch.manual_seed(0)
    layer, x = rnnorm.LSTM(3, 4, norm="layer"), torch.randn(2, 5, 3)
    for name, parameter in layer.named_parameters():
        held = torch._neg_view(-parameter.detach())
        found = functional_call(layer, {name: held}, (x,))
        torch.testing.assert_close(found, layer(x), msg=name)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "LiGRU"])
def test_zeros_without_memory_are_zeros(name):
    layer = getattr(rnnorm, name)(3, 4, norm="layer")
    x = torch._efficientzerotensor(2, 5, 3)
    assert x.data_ptr() == 0
    for twice in (layer, rnnorm.freeze(layer), getattr(rnnorm, name)(3, 4, 2, norm="layer")):
        torch.testing.assert_close(twice(x)[0], twice(torch.zeros(2, 5, 3))[0])
