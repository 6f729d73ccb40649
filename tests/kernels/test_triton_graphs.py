"""The Triton kernels in calls that repeat; interpreted, a stand-in replays them."""

import pytest
import tape
import torch
from gpu_or_interpreter import DEVICE, INTERPRETED
from triton.runtime.interpreter import GridExecutor

import rnnorm
from rnnorm.kernels import cuda_graphs
from rnnorm.kernels.cuda_graphs import SIGHTINGS, Graphs
from rnnorm.kernels.triton import operators

_launch = GridExecutor.__call__
LIKE = {"dtype": torch.float64, "device": DEVICE}


def launch(executor, *args, **kwargs):
    """Puts a kernel's launch on the tape, if there is one."""
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    if isinstance(mode, tape.Tape):
        mode.note(lambda: _launch(executor, *args, **kwargs))
    else:
        _launch(executor, *args, **kwargs)


@pytest.fixture
def captures(monkeypatch):
    """Has passes captured, and counts how many are."""
    count = [0]

    one = tape.capture if INTERPRETED else cuda_graphs._Cuda(DEVICE)

    def capture(run):
        count[0] += 1
        return one(run)

    made = Graphs(capture)
    monkeypatch.setattr(GridExecutor, "__call__", launch)
    monkeypatch.setattr(cuda_graphs, "current_graphs", lambda device: made)
    return count


def train(layer, x, lengths=None):
    """Output, last states and gradients."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    output, state = layer(x, lengths=lengths)
    states = state if isinstance(state, tuple) else (state,)
    (output.square().sum() + sum(s.sum() for s in states)).backward()
    return [output, *states, x.grad, *[p.grad for p in layer.parameters()]]


def both(make, draw, calls, monkeypatch, **given):
    """Results of calls that may be captured, and of those that may not."""
    found, expected = make(), make()
    expected.load_state_dict(found.state_dict())
    results = []
    for layer, none in ((found, False), (expected, True)):
        optimizer = torch.optim.SGD(layer.parameters(), 0.01)
        own = []
        with monkeypatch.context() as patched, rnnorm.use_backend("triton"):
            if none:
                patched.setattr(cuda_graphs, "current_graphs", lambda device: None)
            for call in range(calls):
                torch.manual_seed(call)
                own.append([r.detach().clone() for r in train(layer, draw(), **given)])
                optimizer.step()
        results.append(own)
        results.append(list(layer.buffers()))
    found, populations, expected, wanted = results
    for one, other in zip((*found, populations), (*expected, wanted), strict=True):
        assert all(torch.equal(o, e) for o, e in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("cell", "norm", "more"),
    [
        ("LSTM", "batch", {}),
        ("LSTM", "batch", {"hidden_size": 3, "proj_size": 2}),
        ("GRU", "batch", {}),
        ("RNN", rnnorm.BatchNorm(input="sequence"), {}),
        ("RNN", "layer", {}),
        ("IndRNN", "layer", {}),
    ],
)
def test_training_steps_are_the_same_to_the_bit(cell, norm, more, captures, monkeypatch):
    # two layers and directions share their graphs, whose calls are nested
    def make():
        options = {"num_layers": 2, "bidirectional": True, "norm": norm, "initial_noise": 0}
        return getattr(rnnorm, cell)(4, **{"hidden_size": 2, **options, **more}, **LIKE)

    both(make, lambda: torch.randn(2, 3, 4, **LIKE), 2, monkeypatch)
    # forward and back
    assert captures == [2]


def test_evaluation_has_a_graph_of_its_own(captures):
    layer = rnnorm.LSTM(3, 4, norm="batch", initial_noise=0, **LIKE)
    with rnnorm.use_backend("triton"):
        layer(torch.randn(2, 5, 3, **LIKE))
        layer.eval()
        calls = [torch.randn(2, 5, 3, **LIKE) for _ in range(SIGHTINGS + 1)]
        with torch.no_grad():
            found = [layer(x)[0] for x in calls]
    with torch.no_grad(), rnnorm.use_backend("reference"):
        for output, x in zip(found, calls, strict=True):
            torch.testing.assert_close(output, layer(x)[0])
    assert captures == [1]


@pytest.mark.parametrize("make", [rnnorm.LSTM, rnnorm.IndRNN])
def test_so_has_a_large_call_where_steps_are_launched_one_by_one(make, captures, monkeypatch):
    monkeypatch.setattr(operators, "_MOST_COPIED", 0)
    both(
        lambda: make(3, 4, norm="layer", **LIKE),
        lambda: torch.randn(2, 5, 3, **LIKE),
        SIGHTINGS + 1,
        monkeypatch,
    )
    assert captures == [2]


def test_ragged_batches_are_launched_step_by_step(captures, monkeypatch):
    def make():
        return rnnorm.LSTM(3, 4, norm="batch", initial_noise=0, **LIKE)

    both(
        make, lambda: torch.randn(2, 4, 3, **LIKE), SIGHTINGS + 1, monkeypatch, lengths=[2, 2, 2, 1]
    )
    assert captures == [0]


def test_gradients_of_gradients_of_a_replayed_pass(captures, monkeypatch):
    torch.manual_seed(0)
    layer = rnnorm.GRU(3, 4, norm="layer", initial_noise=0, **LIKE)
    calls = [torch.randn(2, 3, 3, **LIKE) for _ in range(SIGHTINGS + 1)]

    def penalty(x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), list(layer.parameters()))

    with rnnorm.use_backend("triton"):
        found = [penalty(x) for x in calls]
    with rnnorm.use_backend("reference"):
        expected = [penalty(x) for x in calls]
    torch.testing.assert_close(found, expected)
    assert captures == [2]


@pytest.mark.skipif(INTERPRETED, reason="a stand-in has no pool of memory")
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def _anew(self):
        cuda_graphs.forget()
        yield
        cuda_graphs.forget()

    @pytest.fixture
    def run(self):
        """A pass that is captured, and what it gives launched."""
        made = Graphs(cuda_graphs._Cuda(DEVICE))

        def double(x):
            return [2 * x, x.new_zeros(0)]

        def run(size, calls=SIGHTINGS + 2, run=double):
            for call in range(calls):
                x = torch.full((size,), float(call), device=DEVICE)
                assert torch.equal(made.run(run, (x,))[0], 2 * x)
            return made

        return run

    def test_graphs_are_captured_after_all_others_were_dropped(self, run):
        made = run(3)
        made._seen.clear()
        run(4)
        assert all(seen.graph is not None for seen in made._seen.values())

    @pytest.mark.parametrize(
        "forbidden",
        [
            lambda: torch.ones(1, device=DEVICE).item(),
            lambda: torch.cuda.synchronize(),
            lambda: torch.empty(2**50, device=DEVICE),
            lambda: torch.ones(1, device=DEVICE) + torch.ones(1).pin_memory().to(DEVICE),
        ],
        ids=["a number", "a wait", "too much memory", "a copy"],
    )
    def test_after_a_failed_capture_torch_goes_on(self, run, forbidden):
        def fails(x):
            doubled = 2 * x
            if torch.cuda.is_current_stream_capturing():
                forbidden()
                raise RuntimeError("it is not reached on some versions")
            return [doubled]

        # whose pool the one that fails shares
        run(3)
        with pytest.warns(
            RuntimeWarning, match=r"no more CUDA graphs.*(captur|memory|not reached)"
        ):
            run(3, run=fails)
        torch.cuda.synchronize()
        assert torch.randn(4, device=DEVICE).isfinite().all()
        layer = torch.nn.LSTM(3, 4, num_layers=2, dropout=0.5, device=DEVICE)
        layer(torch.randn(2, 5, 3, device=DEVICE))[0].sum().backward()
        graph = torch.cuda.CUDAGraph()
        x = torch.ones(3, device=DEVICE)
        with torch.cuda.graph(graph):
            y = 2 * x
        graph.replay()
        assert torch.equal(y, 2 * x)
