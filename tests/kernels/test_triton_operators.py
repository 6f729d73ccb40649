"""The Triton kernels as part of torch and of rnnorm."""

import copy
from functools import partial

import pytest
import torch
from gpu_or_interpreter import DEVICE, INTERPRETED
from problems import Problem as OnCpu
from torch.utils._python_dispatch import TorchDispatchMode

import rnnorm
from rnnorm.kernels import autograd as passes
from rnnorm.kernels import dispatch, precision, reference, second_derivative
from rnnorm.kernels.inputs import Inputs, Options
from rnnorm.kernels.triton import layer as triton
from rnnorm.kernels.triton import operators
from rnnorm.kernels.triton.forward import run_forward
from rnnorm.kernels.triton.operators import PASSES

Problem = partial(OnCpu, device=DEVICE)
RAGGED = [3, 3, 2]


def second_derivatives(problem, kernel):
    """Of everything, along directions that differ."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in problem.leaves.items()}
    outputs, _ = problem.run(kernel, leaves)
    loss = sum((o.square() * u).sum() for o, u in zip(outputs, problem.upstream, strict=False))
    first = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    along = sum((g * torch.linspace(-1, 1, g.numel()).to(g).view_as(g)).sum() for g in first)
    second = torch.autograd.grad(along, list(leaves.values()), allow_unused=True)
    zeros = map(torch.zeros_like, leaves.values())
    return [z if g is None else g for g, z in zip(second, zeros, strict=True)]


@pytest.mark.parametrize(
    ("cell", "norm", "more"),
    [
        ("LSTM", "all", {}),
        ("GRU", "layer", {}),
        ("LSTM", "all", {"proj_size": 2}),
        ("LSTM", "layer", {"all_states": True}),
        ("IndRNN_TANH", "layer", {}),
    ],
)
def test_gradients_of_gradients(cell, norm, more):
    problem = Problem(cell, norm, (3, 3, 2, 3), RAGGED, **more)
    found = second_derivatives(problem, triton.layer)
    torch.testing.assert_close(found, second_derivatives(problem, reference.layer))


@pytest.fixture
def arguments(monkeypatch):
    """Those with which a problem's layer calls the forward operator."""
    operator = PASSES.forward_operator

    def of(problem):
        calls = []

        def record(*given):
            calls.append(given)
            return operator(*given)

        monkeypatch.setattr(operators, "PASSES", PASSES._replace(forward_operator=record))
        monkeypatch.setattr(passes, "unobserved", lambda tensors: False)
        problem.run(triton.layer, {k: v.requires_grad_() for k, v in problem.leaves.items()})
        monkeypatch.undo()
        (given,) = calls
        return given

    return of


@pytest.mark.parametrize(
    "form",
    [
        {"cell": "LSTM"},
        {"cell": "LSTM", "proj_size": 2},
        {"cell": "IndRNN_RELU"},
    ],
)
def test_operators_pass_opcheck(form, arguments):
    # of a ragged batch the rows that nobody reads are not written
    given = arguments(Problem(**form, norm="all", shape=(2, 3, 2, 3)))
    torch.library.opcheck(PASSES.forward_operator, given)


def test_the_operator_that_returns_all_states_passes_opcheck_but_for_compiled_gradients(arguments):
    given = arguments(Problem("LSTM", "all", (2, 3, 2, 3), all_states=True))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(PASSES.forward_operator, given, test_utils=checks)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_without_a_break():
    problem = Problem("GRU", "all", (3, 3, 2, 4), RAGGED)
    names = list(problem.leaves)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def outputs(given):
        return problem.run(triton.layer, dict(zip(names, given, strict=True)))[0]

    leaves = [leaf.clone().requires_grad_() for leaf in problem.leaves.values()]
    found = outputs(leaves)
    gradients = torch.autograd.grad(sum(o.sum() for o in found), leaves)
    expected, _ = problem.run(reference.layer, dict(zip(names, leaves, strict=True)))
    wanted = torch.autograd.grad(sum(o.sum() for o in expected), leaves)
    for got, want in zip((*found, *gradients), (*expected, *wanted), strict=True):
        torch.testing.assert_close(got, want)


def test_a_forward_pass_that_saved_nothing_is_run_again_for_gradients(monkeypatch):
    problem = Problem("RNN_TANH", "all", (2, 3, 2, 3), None, None)
    expected = problem.results(triton.layer, torch.float64)
    operator = PASSES.forward_operator

    def unsaved(*arguments):
        return operator(*arguments[:-1], False)

    monkeypatch.setattr(operators, "PASSES", PASSES._replace(forward_operator=unsaved))
    monkeypatch.setattr(passes, "unobserved", lambda tensors: False)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in problem.leaves.items()}
    outputs, _ = problem.run(triton.layer, leaves)
    loss = sum((o * u).sum() for o, u in zip(outputs, problem.upstream, strict=False))
    (found,) = torch.autograd.grad(loss, leaves["x"])
    torch.testing.assert_close(found, expected["d x"])


@pytest.mark.parametrize("norm", ["all", "sequence", "layer"])
def test_nothing_of_a_padded_batch_comes_from_the_host(norm, arguments):
    # so that it can be captured as a graph
    names = set()

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            names.add(str(operator).split(".")[1])
            return operator(*args, **(kwargs or {}))

    *inputs, save = arguments(Problem("RNN_TANH", norm, (2, 3, 2, 3)))
    count = len(Inputs._fields)
    with torch.no_grad(), Seen():
        run_forward(Inputs(*inputs[:count]), Options(*inputs[count:]), save)
    assert not {"lift_fresh", "_to_copy", "index_select"} & names
    assert "mm" in names


def test_an_interpreter_runs_where_it_is_named_and_a_gpu_unasked():
    layer = rnnorm.LSTM(3, 5, norm="batch", num_layers=2, bidirectional=True).to(DEVICE)
    x = torch.randn(4, 6, 3, device=DEVICE)
    before = dispatch.calls.copy()
    layer(x)
    assert ("triton" in dispatch.calls - before) is not INTERPRETED
    before = dispatch.calls.copy()
    with rnnorm.use_backend("triton"):
        layer(x)[0].sum().backward()
    assert dispatch.calls["triton"] == before["triton"] + 1
    assert layer.weight_hh_l1.grad.isfinite().all()


def test_populations_are_those_of_the_reference():
    norm = rnnorm.BatchNorm(horizon=5, momentum=0.4)
    expected = rnnorm.LSTM(3, 5, norm=norm, initial_noise=0, dtype=torch.float64)
    found = copy.deepcopy(expected).to(DEVICE)
    batches = torch.randn(4, 4, 9, 3, dtype=torch.float64)
    batches[2, 1, 0, 0] = torch.nan
    outputs = []

    def states(x):
        return x.new_zeros(1, 9, 5), x.new_zeros(1, 9, 5)

    for name, layer in (("triton", found), ("reference", expected)):
        with rnnorm.use_backend(name):
            for x in batches.to(layer.weight_hh_l0.device):
                layer(x)
                layer(x, lengths=[4, 4, 4, 4, 4, 4, 4, 4, 2])
                # beyond the horizon
                layer(x, step=3)
            # rows at different ages
            later = layer.eval()(batches[0].to(x), step=torch.arange(9), hx=states(x))[0]
            outputs.append(later.detach().cpu())
    torch.testing.assert_close(*outputs)
    assert expected.population_cell_l0.num_batches_tracked.tolist() == [8, 6, 6, 10, 3]
    state = {key: value.cpu() for key, value in found.state_dict().items()}
    torch.testing.assert_close(state, dict(expected.state_dict()))


@pytest.mark.parametrize(
    ("cell", "arguments", "why"),
    [
        ("LSTM", {"norm": "carry"}, "site 'carry'"),
        ("LSTM", {"peephole": "all"}, "has no LSTM"),
        ("GRU", {"reset_after": False}, "has no GRU"),
        (
            "LSTM",
            {"norm": {"recurrent": "layer", "cell": "batch"}},
            "one norm for all sites but input",
        ),
        ("IndRNN", {"dtype": torch.bfloat16}, "it computes IndRNN in float32 and float64 alone"),
        ("LSTM", {"recurrent_dropout": rnnorm.Zoneout()}, "no recurrent dropout"),
    ],
)
def test_what_it_does_not_cover_is_said(cell, arguments, why):
    layer = getattr(rnnorm, cell)(3, 5, **arguments, device=DEVICE)
    x = torch.randn(4, 6, 3, device=DEVICE).to(next(layer.parameters()))
    with rnnorm.use_backend("triton"), pytest.raises(RuntimeError, match=why):
        layer(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_that_is_saved_does_not_hold_operators_of_ours():
    layer = rnnorm.LSTM(3, 5, norm="layer", device=DEVICE).eval()
    with rnnorm.use_backend("triton"), pytest.raises(RuntimeError, match="loads a trace"):
        torch.jit.trace(layer, torch.randn(4, 6, 3, device=DEVICE), check_trace=False)


@pytest.mark.parametrize("lengths", [None, [4, 4, 3, 2, 1, 1]])
def test_outputs_may_be_detached_in_place(lengths):
    layer = rnnorm.GRU(3, 5, norm="layer", device=DEVICE)
    with rnnorm.use_backend("triton"):
        output, h_n = layer(torch.randn(4, 6, 3, device=DEVICE), lengths=lengths)
    assert not output.detach_().requires_grad
    assert not h_n.detach_().requires_grad


def test_outside_the_interpreter_it_wants_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with rnnorm.use_backend("triton"), pytest.raises(RuntimeError, match="on a GPU, not on cpu"):
        rnnorm.LSTM(3, 5)(torch.randn(4, 6, 3))


@pytest.mark.parametrize("read", ["output", "states"])
@pytest.mark.parametrize("lengths", [None, RAGGED])
def test_only_the_gradient_of_states_is_the_references(lengths, read, monkeypatch):
    calls, run = [], second_derivative._reference

    def noted(*given):
        calls.append(given)
        return run(*given)

    monkeypatch.setattr(second_derivative, "_reference", noted)
    layer = rnnorm.LSTM(2, 5, norm="layer", num_layers=2, dtype=torch.float64, device=DEVICE)
    x = torch.randn(3, 3, 2, dtype=torch.float64, device=DEVICE)
    reset = torch.rand(3, 3, device=DEVICE) < 0.3
    results = []
    for name in ("triton", "reference"):
        with rnnorm.use_backend(name):
            output, last, states = layer(x, lengths=lengths, reset=reset, return_states=True)
        loss = output.square().sum()
        if read == "states":
            loss = loss + states[1].sin().sum()
        gradients = torch.autograd.grad(loss, list(layer.parameters()))
        results.append((output, last, states, gradients))
        assert len(calls) == 2 * (read == "states")
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("proj_size", [0, 2])
def test_under_autocast_states_keep_their_digits(proj_size):
    layer = rnnorm.LSTM(3, 5, norm="batch", initial_noise=0, proj_size=proj_size, device=DEVICE)
    x = torch.randn(4, 9, 3, device=DEVICE)
    results = []
    for name in ("triton", "reference"):
        with rnnorm.use_backend(name), torch.autocast(DEVICE.type, torch.bfloat16):
            results.append(layer(x))
    (found, states), (expected, wanted) = results
    assert found.dtype == expected.dtype
    assert [s.dtype for s in states] == [s.dtype for s in wanted]
    torch.testing.assert_close((found, states), (expected, wanted), rtol=2e-2, atol=2e-2)


def test_products_of_both_passes_follow_cudnns_switch(monkeypatch):
    problem, shown = Problem("LSTM", "all", (2, 3, 2, 3)), []

    def noting(run):
        def noted(*given, **options):
            shown.append(precision._shown(precision._MATMUL))
            return run(*given, **options)

        return noted

    def on_a_gpu(device, dtype):
        return precision.as_in_cudnn(torch.device("cuda"), dtype)

    for name in ("run_forward", "run_backward"):
        monkeypatch.setattr(operators, name, noting(getattr(operators, name)))
    monkeypatch.setattr(operators, "as_in_cudnn", on_a_gpu)
    with precision.products_in("ieee"):
        problem.results(triton.layer, torch.float32)
        precision._set(precision._CUDNN, "tf32")
        problem.results(triton.layer, torch.float32)
        problem.results(triton.layer, torch.float64)
    assert shown == [*["ieee"] * 2, *["tf32"] * 2, *["ieee"] * 2]
