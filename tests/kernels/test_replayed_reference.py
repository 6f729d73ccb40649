"""The reference loop in CUDA graphs, beside the reference; without a GPU a tape replays them."""

from dataclasses import replace

import pytest
import tape
import torch
from torch.utils._pytree import tree_leaves

import rnnorm
from rnnorm import BatchNorm, LayerNorm, Zoneout
from rnnorm.kernels import cuda_graphs, dispatch, replayed_reference
from rnnorm.kernels.call import Request
from rnnorm.kernels.cuda_graphs import SIGHTINGS, Graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LIKE = {"dtype": torch.float64, "device": DEVICE}
PERIODS = [1, 2, 4]
LAYERS = {
    "hmlstm-batch": lambda **more: rnnorm.HMLSTM(4, 5, 2, norm="batch", **more),
    "hmlstm-soft": lambda **more: rnnorm.HMLSTM(4, 5, 2, boundary="soft", norm="layer", **more),
    "hmlstm-given": lambda **more: rnnorm.HMLSTM(4, 5, 2, boundary="given", **more),
    "clockwork-batch": lambda **more: rnnorm.ClockworkRNN(4, 6, PERIODS, norm="batch", **more),
    "clockwork-layer": lambda **more: rnnorm.ClockworkRNN(4, 6, PERIODS, norm="layer", **more),
    "mirnn": lambda **more: rnnorm.MIRNN(4, 5, norm="rms", **more),
    "before": lambda **more: rnnorm.GRU(4, 5, reset_after=False, norm="batch", **more),
    "full": lambda **more: rnnorm.LSTM(4, 5, peephole="full", norm="haste", **more),
    "zoneout": lambda **more: rnnorm.LSTM(
        4,
        5,
        2,
        norm="batch",
        bidirectional=True,
        recurrent_dropout=Zoneout(cell=0.1, hidden=0.2),
        **more,
    ),
    "sites": lambda **more: rnnorm.GRU(
        4, 5, norm={"input": BatchNorm(input="sequence"), "recurrent": LayerNorm()}, **more
    ),
}


@pytest.fixture
def captures(monkeypatch):
    """Has passes captured, here by a tape if there is no GPU, and counts how many are."""
    count = [0]
    one = tape.capture if DEVICE.type == "cpu" else cuda_graphs._Cuda(DEVICE)

    def capture(run):
        count[0] += 1
        return one(run)

    def refuses(request):
        return replayed_reference.refuses(request._replace(device=torch.device("cuda")))

    made = Graphs(capture)
    monkeypatch.setattr(cuda_graphs, "current_graphs", lambda device: made)
    rows = [
        replace(row, unavailable="", refuses=refuses) if row.name == "cuda-graph" else row
        for row in dispatch.KERNELS
    ]
    monkeypatch.setattr(dispatch, "KERNELS", tuple(rows))
    return count


def draw(*shape):
    return torch.randn(*shape, **LIKE)


def run(layer, x, **given):
    """Results and gradients of a call, whose random numbers are always the same."""
    layer.zero_grad()
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    results = tree_leaves(layer(x, **given))
    sum((r.square() * (k + 1)).sum() for k, r in enumerate(results)).backward()
    return [*results, x.grad, *[p.grad for p in layer.parameters()], *layer.buffers()]


def both(make, calls):
    """Compare the results of calls on a graph with those on the reference."""
    torch.manual_seed(0)
    mine, reference = make(**LIKE), make(**LIKE)
    reference.load_state_dict(mine.state_dict())
    for x, given in calls:
        with rnnorm.use_backend("cuda-graph"):
            before = dispatch.calls["cuda-graph"]
            found = run(mine, x, **given)
            assert dispatch.calls["cuda-graph"] == before + 1
        with rnnorm.use_backend("reference"):
            wanted = run(reference, x, **given)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)
        for layer in (mine, reference):
            torch.optim.SGD(layer.parameters(), 0.01).step()


@pytest.mark.parametrize("name", LAYERS)
def test_training_steps_are_those_of_the_reference(name, captures):
    both(LAYERS[name], [(draw(3, 4, 4), {}) for _ in range(SIGHTINGS + 1)])
    # forward and back, once for each layer and direction
    assert captures[0] % 2 == 0
    assert captures[0] >= 2


def test_resets_are_read_anew_at_each_replay(captures):
    calls = [(draw(4, 3, 4), {"reset": torch.rand(4, 3) < 0.4}) for _ in range(SIGHTINGS + 1)]
    both(LAYERS["clockwork-layer"], [(x, {"reset": g["reset"].to(DEVICE)}) for x, g in calls])
    assert captures == [2]


@pytest.mark.parametrize("given", [{"lengths": [3, 2, 1, 1]}, {"step": torch.tensor([2, 0, 1, 4])}])
def test_rows_that_differ_have_no_graph(given, captures):
    both(LAYERS["clockwork-layer"], [(draw(3, 4, 4), given) for _ in range(SIGHTINGS + 1)])
    assert captures == [0]


def test_a_stream_shares_its_graphs(captures):
    layer = LAYERS["clockwork-batch"](**LIKE)
    layer(draw(8, 4, 4))
    layer.eval()
    state = None
    for k in range(4 * SIGHTINGS):
        x = draw(2, 4, 4)
        with torch.no_grad(), rnnorm.use_backend("cuda-graph"):
            found = layer(x, state, step=2 * k)
        with torch.no_grad(), rnnorm.use_backend("reference"):
            wanted = layer(x, state, step=2 * k)
        torch.testing.assert_close(found, wanted)
        state = wanted[1]
    # with periods 1, 2 and 4 a call of two frames begins in one of two ways
    assert captures == [2]


def test_gradients_of_a_batch_of_losses(captures):
    layer = LAYERS["mirnn"](**LIKE)

    def jacobian(x):
        return torch.autograd.functional.jacobian(lambda x: layer(x)[0][-1, 0], x, vectorize=True)

    for call in range(2 * SIGHTINGS):
        x = draw(3, 4, 4)
        with rnnorm.use_backend("cuda-graph"):
            found = jacobian(x)
            # beside plain losses of the same shape
            one = x.clone().requires_grad_()
            layer(one)[0][-1, 0, call % 5].backward()
        torch.testing.assert_close(found[call % 5], one.grad)
        with rnnorm.use_backend("reference"):
            torch.testing.assert_close(found, jacobian(x))


def test_evaluation_reads_the_population_as_it_is_now(captures):
    layer = LAYERS["hmlstm-batch"](**LIKE)
    for _ in range(SIGHTINGS + 1):
        layer.train()
        layer(draw(3, 4, 4))
        layer.eval()
        x = draw(3, 4, 4)
        with torch.no_grad(), rnnorm.use_backend("cuda-graph"):
            found = tree_leaves(layer(x))
        with torch.no_grad(), rnnorm.use_backend("reference"):
            torch.testing.assert_close(found, tree_leaves(layer(x)))
    assert captures == [1]


def test_two_calls_of_one_shape_before_a_backward_pass(captures):
    layer, other = LAYERS["full"](**LIKE), LAYERS["full"](**LIKE)
    other.load_state_dict(layer.state_dict())

    def step(layer, x):
        layer.zero_grad()
        first, second = layer(x)[0], layer(2 * x)[0]
        (first.sum() + (first * second).sum()).backward()
        return [p.grad for p in layer.parameters()]

    for _ in range(SIGHTINGS + 1):
        x = draw(3, 4, 4)
        with rnnorm.use_backend("cuda-graph"):
            found = step(layer, x)
        with rnnorm.use_backend("reference"):
            torch.testing.assert_close(found, step(other, x))
    assert captures == [2]


@pytest.mark.parametrize("name", ["hmlstm-soft", "mirnn", "before"])
def test_gradients_of_gradients(name, captures):
    torch.manual_seed(0)
    layer = LAYERS[name](**LIKE, learn_initial_state="from_input")

    def penalty(x):
        x = x.clone().requires_grad_()
        # h_0 depends on x, whose two ways must not be counted twice
        (slope,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()])

    for _ in range(SIGHTINGS + 1):
        x = draw(2, 3, 4)
        with rnnorm.use_backend("cuda-graph"):
            torch.manual_seed(1)
            found = penalty(x)
        with rnnorm.use_backend("reference"):
            torch.manual_seed(1)
            torch.testing.assert_close(found, penalty(x))


def test_a_parameter_that_the_loss_does_not_read_gets_zeros(captures):
    layer = rnnorm.LSTM(4, 5, norm="layer", **LIKE)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == "beta_cell_l0")
    with rnnorm.use_backend("cuda-graph"):
        _, (_, c_n) = layer(draw(1, 3, 4))
        c_n.sum().backward()
    assert not layer.beta_cell_l0.grad.any()


def test_autocast_around_backward_changes_no_dtype(captures):
    layer, x = LAYERS["before"](**LIKE).float(), draw(3, 4, 4).float()
    grads = []
    for enabled in (False, True):
        layer.zero_grad()
        with rnnorm.use_backend("cuda-graph"):
            torch.manual_seed(0)
            output, _ = layer(x)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=enabled):
            output.sum().backward()
        grads.append([p.grad for p in layer.parameters()])
    assert all(map(torch.equal, *grads))


def test_a_weight_changed_in_place_before_backward_is_noticed(captures):
    layer = LAYERS["mirnn"](**LIKE)
    with rnnorm.use_backend("cuda-graph"):
        output, _ = layer(draw(3, 4, 4))
    with torch.no_grad():
        layer.alpha_l0.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize(
    ("cell", "more", "why"),
    [
        (rnnorm.LSTM(1, 1).cell, {"device": torch.device("cpu")}, "for GPUs"),
        (rnnorm.LSTM(1, 1).cell, {"synchronized": True}, "several processes"),
        (rnnorm.LSTM(1, 1).cell, {"exported": "torch"}, "exported"),
        (rnnorm.HMLSTM(1, 1, boundary="sample").cell, {}, "other boundaries"),
        (type("Own", (rnnorm.Cell,), {})(), {}, "Own of yours"),
        (rnnorm.LSTM(1, 1).cell, {"norm": type("Mine", (LayerNorm,), {})()}, "Mine of yours"),
        (rnnorm.HMLSTM(1, 1).cell, {}, ""),
    ],
)
def test_what_it_refuses(cell, more, why):
    request = Request(cell, None, torch.device("cuda"), torch.float32, training=True)
    found = replayed_reference.refuses(request._replace(**more))
    assert (why in found) if why else not found


def test_nothing_runs_in_a_graph_unasked():
    request = Request(rnnorm.HMLSTM(1, 1).cell, None, torch.device("cuda"), torch.float32)
    row = next(row for row in dispatch.KERNELS if row.name == "cuda-graph")
    assert not row.refuses(request)
    assert "no GPU has run it yet" in row.unproven
