"""A layer on the fused kernel inside torch.compile(fullgraph=True)."""

import copy

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import rnnorm
from rnnorm import BatchNorm, LayerNorm, RMSNorm, tracing
from rnnorm.kernels import dispatch

pytestmark = [
    pytest.mark.skipif(bool(rnnorm.backends()["cpu"]), reason="the CPU kernels are missing"),
    pytest.mark.skipif(tracing.RELEASE < (2, 13), reason="the graph breaks at every layer"),
]
# "sorted" has a test of its own, in layers and directions
FORMS = ["dense", "packed", "lengths"]
# how rows are packed does not depend on the cell
CELL_AND_FORM = [*(("LSTM", form) for form in FORMS), ("GRU", "packed"), ("RNN", "lengths")]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def pair(name, backend="aot_eager", **options):
    """A layer with statistics, and its compiled twin."""
    torch.manual_seed(0)
    norm = rnnorm.BatchNorm(horizon=options.pop("horizon", 9))
    if not name.endswith("Cell"):
        options["initial_noise"] = 0.0
    eager = getattr(rnnorm, name)(3, 5, norm=norm, **options)
    eager(torch.randn(4, 3) if name.endswith("Cell") else torch.randn(3, 4, 3))
    twin = copy.deepcopy(eager)
    return eager, twin, torch.compile(twin, fullgraph=True, backend=backend)


def batch(form, lengths, seed):
    """Input and keyword arguments with rows of the given lengths."""
    torch.manual_seed(seed)
    x = torch.randn(max(lengths), len(lengths), 3, requires_grad=True)
    if form == "dense":
        return x, x, {}
    if form == "lengths":
        return x, x, {"lengths": torch.tensor(lengths)}
    lengths = sorted(lengths, reverse=True) if form == "sorted" else lengths
    return x, pack_padded_sequence(x, lengths, enforce_sorted=form == "sorted"), {}


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in result if part is not None for t in flat(part)]


def step(call, layer, form, lengths, seed=1, **more):
    """Everything that one call leaves: results, gradients and statistics."""
    x, given, options = batch(form, lengths, seed)
    results = flat(call(given, **options, **more))
    floating = [r for r in results if r.is_floating_point()]
    leaves = [x, *layer.parameters()]
    gradients = torch.autograd.grad(sum(r.square().sum() for r in floating), leaves)
    return [*results, *gradients, *(b.clone() for b in layer.buffers())]


def assert_same_bits(found, expected):
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def state(name, rows, count=1):
    torch.manual_seed(7)
    h = torch.randn(count, rows, 5)
    return (h, torch.randn(count, rows, 5)) if name == "LSTM" else h


@pytest.mark.parametrize(("name", "form"), CELL_AND_FORM)
def test_a_layer_is_one_graph_with_the_same_bits(name, form):
    eager, twin, compiled = pair(name)
    runs = dispatch.calls["reference"]
    # the second minibatch has another order of lengths, the same number of frames
    for lengths in ([4, 6, 2], [6, 1, 5]):
        found = step(compiled, twin, form, lengths)
        assert_same_bits(found, step(eager, eager, form, lengths))
    assert graphs() == 1
    eager.eval(), twin.eval()
    found = step(compiled, twin, form, [6, 3, 3])
    assert_same_bits(found, step(eager, eager, form, [6, 3, 3]))
    assert graphs() == 2
    assert dispatch.calls["reference"] == runs


@pytest.mark.slow
def test_states_layers_and_directions():
    eager, twin, compiled = pair("LSTM", num_layers=2, bidirectional=True)
    hx = state("LSTM", 3, 4)
    found = step(compiled, twin, "sorted", [4, 6, 2], hx=hx)
    assert_same_bits(found, step(eager, eager, "sorted", [4, 6, 2], hx=hx))


def test_the_statistics_grow():
    eager, twin, compiled = pair("GRU", horizon=None)
    found = step(compiled, twin, "lengths", [4, 6, 2])
    assert_same_bits(found, step(eager, eager, "lengths", [4, 6, 2]))
    assert len(twin.population_input_l0) == 6


def test_padding_beyond_the_longest_row_changes_no_value():
    eager, twin, compiled = pair("RNN")
    x, lengths = torch.randn(6, 3, 3), torch.tensor([2, 4, 3])
    for layer in (eager.train(), eager.eval()):
        twin.train(layer.training)
        found, expected = compiled(x, lengths=lengths), layer(x, lengths=lengths)
        assert_same_bits(flat(found), flat(expected))
        assert_same_bits(list(twin.buffers()), list(layer.buffers()))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["packed", "lengths"])
def test_other_lengths_compile_a_bounded_number_of_graphs(form):
    eager, twin, compiled = pair("RNN")
    for k, lengths in enumerate(([4, 6, 2], [7, 3, 5, 4], [5, 2, 5, 1, 3], [8, 2, 7, 3, 3, 1])):
        found = step(compiled, twin, form, lengths, k)
        assert_same_bits(found, step(eager, eager, form, lengths, k))
        if k == 2:
            before = graphs()
    assert graphs() == before <= 3


def test_a_cell_is_one_graph_with_the_same_bits():
    eager, twin, compiled = pair("LSTMCell")
    for training in (True, False):
        eager.train(training), twin.train(training)
        x = torch.randn(4, 3, requires_grad=True)
        found = flat([call(x, step=2) for call in (compiled, eager)])
        half = len(found) // 2
        assert_same_bits(found[:half], found[half:])
        for mine, layer in ((found[:half], twin), (found[half:], eager)):
            layer.zero_grad()
            sum(part.square().sum() for part in mine).backward()
        assert_same_bits(*([p.grad for p in layer.parameters()] for layer in (twin, eager)))
        assert_same_bits(list(twin.buffers()), list(eager.buffers()))


def test_values_are_checked_when_the_graph_runs():
    _, _, compiled = pair("RNN", backend="eager")
    x = torch.randn(4, 3, 3)
    compiled(x, lengths=torch.tensor([4, 2, 3]))
    with pytest.raises(RuntimeError, match="lengths must lie between 1 and"):
        compiled(x, lengths=torch.tensor([4, 0, 3]))


def test_a_packed_result_keeps_its_order():
    eager, _, compiled = pair("RNN", backend="eager")
    _, given, _ = batch("packed", [2, 5, 3], 1)
    found, _ = compiled(given)
    assert isinstance(found, PackedSequence)
    assert torch.equal(found.sorted_indices, given.sorted_indices)
    assert torch.equal(found.data, eager(given)[0].data)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), [*CELL_AND_FORM, ("LSTM-projected", "lengths")])
def test_without_a_norm_a_layer_is_one_graph_with_torchs_values(name, form):
    name, _, projected = name.partition("-")
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    options |= {"proj_size": 2} if projected else {}
    layer = getattr(rnnorm, name)(3, 5, **options)
    theirs = getattr(torch.nn, name)(3, 5, **options)
    theirs.load_state_dict(layer.state_dict())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    fused = dispatch.calls["cpu"]
    x = torch.randn(6, 3, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 6, 2])
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    given = packed if form == "packed" else x
    results = flat(compiled(given, **({"lengths": lengths} if form == "lengths" else {})))
    assert dispatch.calls["cpu"] == fused + 1
    expected = flat(theirs(x if form == "dense" else packed))
    if form == "lengths":
        expected[:4] = [torch.nn.utils.rnn.pad_packed_sequence(PackedSequence(*expected[:4]))[0]]
    found = []
    for some, module in ((results, layer), (expected, theirs)):
        loss = sum(r.square().sum() for r in some if r.is_floating_point())
        leaves = [x, *module.parameters()]
        # both graphs go through the one packing
        found.append([*some, *torch.autograd.grad(loss, leaves, retain_graph=True)])
    torch.testing.assert_close(*found)


APART = {"input": False, "recurrent": False}
MORE_FORMS = {
    "carry": ("LSTM", {"norm": RMSNorm(cell=False, carry=True, over="gate")}),
    "mixed": ("LSTM", {"norm": {"input": BatchNorm(input="sequence"), "recurrent": "layer"}}),
    "both": ("GRU", {"norm": LayerNorm(**APART, joint=True), "reset_after": "both"}),
    "LiGRU": ("LiGRU", {"norm": "layer"}),
    "IndRNN": ("IndRNN", {"norm": BatchNorm(population="shared")}),
    "projection": ("LSTM", {"norm": "layer", "proj_size": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_FORMS)
def test_more_norms_cells_and_resets_are_one_graph_for_any_sizes(name):
    torch.manual_seed(0)
    layer, options = MORE_FORMS[name]
    eager = getattr(rnnorm, layer)(3, 5, initial_noise=0.0, **options)
    twin = copy.deepcopy(eager)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager", dynamic=True)
    # rows are cut, by the values of resets, where there are statistics over them
    resets = [False] if eager._has_statistics() else [False, True]
    for begin_anew in resets:
        for lengths in ([6, 4, 6, 1], [7, 7, 2, 7, 2, 6]):
            more = {"reset": torch.rand(max(lengths), len(lengths)) < 0.3} if begin_anew else {}
            found = step(compiled, twin, "lengths", lengths, **more)
            assert_same_bits(found, step(eager, eager, "lengths", lengths, **more))
    assert graphs() == len(resets)


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
def test_without_a_norm_a_cell_is_one_graph_with_torchs_bits(name):
    cell = getattr(rnnorm, name)(3, 5)
    theirs = getattr(torch.nn, name)(3, 5)
    theirs.load_state_dict(cell.state_dict())
    compiled = torch.compile(cell, fullgraph=True, backend="aot_eager")
    found = []
    for call, module in ((compiled, cell), (theirs, theirs)):
        x = torch.ones(4, 3, requires_grad=True)
        results = flat(call(x))
        leaves = [x, *module.parameters()]
        found.append([*results, *torch.autograd.grad(sum(r.sum() for r in results), leaves)])
    assert_same_bits(*found)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_layer_on_torchs_operators_breaks_the_graph():
    layer = rnnorm.LSTM(3, 5, proj_size=2)
    x = torch.randn(4, 2, 3)
    with rnnorm.use_backend("aten"):
        found = torch.compile(layer, backend="eager")(x)
    assert_same_bits(flat(found), flat(layer(x)))
