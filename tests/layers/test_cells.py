"""RNNCell, LSTMCell and GRUCell: torch.nn's without a norm, one step of the layer with one."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn.utils import parametrizations

import rnnorm
from rnnorm.kernels import dispatch

# torch.nn's calls know no step
pytestmark = pytest.mark.filterwarnings("ignore:hx was given without step")

F64 = {"dtype": torch.float64}
ERRORS = (RuntimeError, TypeError, ValueError, IndexError)


def twins(name, *arguments, **options):
    options = {**F64, **options}
    torch.manual_seed(0)
    theirs = getattr(nn, name)(3, 4, *arguments, **options)
    torch.manual_seed(0)
    return getattr(rnnorm, name)(3, 4, *arguments, **options), theirs


def frame(rows=5):
    torch.manual_seed(1)
    return torch.randn(3, **F64) if rows is None else torch.randn(rows, 3, **F64)


def state_of(name, rows=5):
    torch.manual_seed(2)
    shape = (4,) if rows is None else (rows, 4)
    h, c = torch.randn(shape, **F64), torch.randn(shape, **F64)
    return (h, c) if name == "LSTMCell" else h


def parts(result):
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RNNCell", (True, "tanh")),
        ("RNNCell", (False, "relu")),
        ("RNNCell", (True, "relu", "cpu", torch.float64)),
        ("LSTMCell", (False,)),
        ("LSTMCell", (True, "cpu", torch.float64)),
        ("GRUCell", (False,)),
        ("GRUCell", (True, "cpu", torch.float64)),
        ("RNNCell", ()),
        ("LSTMCell", ()),
        ("GRUCell", ()),
    ],
    ids=str,
)
def test_arguments_names_and_values_are_torchs(name, arguments, identical):
    torch.manual_seed(0)
    theirs = getattr(nn, name)(3, 4, *arguments)
    torch.manual_seed(0)
    ours = getattr(rnnorm, name)(3, 4, *arguments)
    assert repr(ours) == repr(theirs)
    assert ours.extra_repr() == theirs.extra_repr()
    identical(list(ours.state_dict().values()), list(theirs.state_dict().values()))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.state_dict()._metadata == theirs.state_dict()._metadata
    assert (ours.bias_ih is None) == (theirs.bias_ih is None)
    assert list(ours.buffers()) == []


def test_the_signature_begins_with_torchs(cell_name):
    ours = list(inspect.signature(getattr(rnnorm, cell_name)).parameters.values())
    theirs = list(inspect.signature(getattr(nn, cell_name)).parameters.values())
    assert [p.name for p in ours[: len(theirs)]] == [p.name for p in theirs]
    assert [p.default for p in ours[: len(theirs)]] == [p.default for p in theirs]
    assert [p.name for p in ours[len(theirs) :]] == ["norm"]
    assert ours[-1].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}),
        ((3,), {}),
        ((-1, 4), {}),
        ((3.0, 4), {}),
        (("3", 4), {}),
        ((3, 4), {"num_layers": 2}),
        ((3, 4), {"dtype": torch.int64}),
        ((3, 4), {"device": "nowhere"}),
    ],
    ids=str,
)
def test_wrong_arguments_fail_as_in_torch(cell_name, arguments, options, same_error):
    same_error(
        lambda: getattr(rnnorm, cell_name)(*arguments, **options),
        lambda: getattr(nn, cell_name)(*arguments, **options),
    )


def test_an_unknown_nonlinearity_fails_as_in_torch(same_error):
    ours, theirs = twins("RNNCell", nonlinearity="sigmoid")
    same_error(lambda: ours(frame()), lambda: theirs(frame()))


@pytest.mark.parametrize("rows", [5, 1, None])
@pytest.mark.parametrize("bias", [True, False])
def test_values_are_torchs(cell_name, rows, bias, same):
    ours, theirs = twins(cell_name, bias=bias)
    x, state = frame(rows), state_of(cell_name, rows)
    same(ours(x), theirs(x))
    same(ours(x, state), theirs(x, state))
    same(ours(input=x, hx=state), theirs(input=x, hx=state))


def test_relu_values_are_torchs(same):
    ours, theirs = twins("RNNCell", nonlinearity="relu")
    same(ours(frame(), state_of("RNNCell")), theirs(frame(), state_of("RNNCell")))


def test_gradients_and_second_gradients_are_torchs(cell_name, same):
    found = []
    for cell in twins(cell_name):
        x = frame().requires_grad_()
        wanted = [x, *cell.parameters()]
        total = sum(part.pow(2).sum() for part in parts(cell(x, state_of(cell_name))))
        first = torch.autograd.grad(total, wanted, create_graph=True)
        second = torch.autograd.grad(sum(part.pow(2).sum() for part in first), wanted)
        found.append((first, second))
    same(*found)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(5, 2, **F64),
        torch.zeros(1, 5, 3, **F64),
        torch.zeros((), **F64),
        None,
        "frame",
    ],
    ids=["narrow", "three dimensions", "no dimension", "none", "text"],
)
def test_wrong_inputs_fail_as_in_torch(cell_name, x, same, same_error):
    ours, theirs = twins(cell_name)
    same_error(lambda: ours(x), lambda: theirs(x))


@pytest.mark.parametrize("shape", [(1, 5, 4), ()], ids=str)
def test_states_of_wrong_dimension_fail_as_in_torch(cell_name, shape, same, same_error):
    ours, theirs = twins(cell_name)
    state = torch.zeros(shape, **F64)
    state = (state, state) if cell_name == "LSTMCell" else state
    same_error(lambda: ours(frame(), state), lambda: theirs(frame(), state))


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (1,), (4,)], ids=str)
def test_states_of_wrong_size_fail_as_in_torch(cell_name, shape, same_error):
    ours, theirs = twins(cell_name)
    state = torch.zeros(shape, **F64)
    state = (state, state) if cell_name == "LSTMCell" else state
    same_error(lambda: ours(frame(), state), lambda: theirs(frame(), state))
    with rnnorm.use_backend("reference"):
        same_error(lambda: ours(frame(), state), lambda: theirs(frame(), state))


@pytest.mark.parametrize("name", ["RNNCell", "GRUCell"])
def test_a_pair_of_states_fails_as_in_torch(name, same, same_error):
    ours, theirs = twins(name)
    state = state_of("LSTMCell")
    same_error(lambda: ours(frame(), state), lambda: theirs(frame(), state))


def test_operator_errors_are_torchs(cell_name, same_error):
    ours, theirs = twins(cell_name)
    same_error(lambda: ours(frame().float()), lambda: theirs(frame().float()))
    if cell_name == "LSTMCell":
        state = torch.zeros(5, 4, **F64)
        same_error(lambda: ours(frame(), (state,)), lambda: theirs(frame(), (state,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_autocast_gives_torchs_dtypes(cell_name, dtype):
    ours, theirs = twins(cell_name, dtype=dtype)
    normalised = getattr(rnnorm, cell_name)(3, 4, norm="batch", dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = frame().to(dtype)
        expected = [part.dtype for part in parts(theirs(x))]
        assert [part.dtype for part in parts(ours(x))] == expected
        assert [part.dtype for part in parts(normalised(x))] == expected
        with rnnorm.use_backend("reference"):
            assert [part.dtype for part in parts(ours(x))] == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_give_torchs_dtypes(cell_name, dtype):
    ours, theirs = twins(cell_name, dtype=dtype)
    x = frame().to(dtype)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    with rnnorm.use_backend("reference"):
        torch.testing.assert_close(ours(x), theirs(x), rtol=0.02, atol=0.02)


def test_copies_pickles_and_functional_call_are_torchs(cell_name, same):
    ours, theirs = twins(cell_name)
    expected = theirs(frame())
    same(pickle.loads(pickle.dumps(ours))(frame()), expected)
    same(copy.deepcopy(ours)(frame()), expected)
    other = getattr(rnnorm, cell_name)(3, 4, **F64)
    same(functional_call(other, dict(theirs.named_parameters()), (frame(),)), expected)
    other.load_state_dict(theirs.state_dict())
    same(other.share_memory()(frame()), expected)


@pytest.mark.parametrize("weight", ["weight_ih", "weight_hh", "bias_ih", "bias_hh"])
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_any_weight_takes_a_parametrization(cell_name, weight, kind, same):
    ours, theirs = twins(cell_name)
    getattr(parametrizations, kind)(ours, weight)
    ours.eval()
    with torch.no_grad():
        for original in ours.parametrizations.parameters():
            original.mul_(2.0).add_(0.1)
        getattr(theirs, weight).copy_(getattr(ours, weight))
    same(ours(frame(), state_of(cell_name)), theirs(frame(), state_of(cell_name)))


def test_meta_cells_give_shapes(cell_name, norm, same):
    for options in ({}, {"norm": norm}):
        cell = getattr(rnnorm, cell_name)(3, 4, device="meta", **options)
        found = parts(cell(torch.zeros(5, 3, device="meta")))
        assert [(part.shape, part.device.type) for part in found] == [((5, 4), "meta")] * len(found)


def test_it_is_not_torchs_class(cell_name):
    ours, theirs = twins(cell_name)
    assert not isinstance(ours, type(theirs))


def test_parameters_of_a_batch_normalised_cell_have_the_names_of_the_layer_without_suffix(
    cell_name,
):
    names = set(getattr(rnnorm, cell_name)(3, 4, norm="batch").state_dict())
    layer = getattr(rnnorm, cell_name.removesuffix("Cell"))(3, 4, norm="batch")
    assert names == {name.replace("_l0", "") for name in layer.state_dict()}
    assert {"gamma_input", "gamma_recurrent", "population_input.mean"} <= names


def test_a_cell_stepped_through_time_is_the_layer(cell_name, norm, close):
    layer, cell = layer_and_cell(cell_name, norm)
    x = torch.randn(6, 5, 3, **F64)
    for training in (True, False):
        layer.train(training), cell.train(training)
        expected, last = layer(x)
        state, outputs = None, []
        for step, frames in enumerate(x.unbind(0)):
            state = cell(frames, state, step=step)
            outputs.append(parts(state)[0])
        close(torch.stack(outputs), expected)
        close([part[None] for part in parts(state)], parts(last))
        close(list(cell.state_dict().values()), list(layer.state_dict().values()))


def test_rows_of_a_cell_stand_at_steps_of_their_own_in_evaluation(cell_name, close):
    layer, cell = layer_and_cell(cell_name, "batch")
    layer(torch.randn(6, 5, 3, **F64))
    cell.load_state_dict(
        {name.replace("_l0", ""): value for name, value in layer.state_dict().items()}
    )
    cell.eval()
    steps = torch.tensor([0, 3, 1, 9, 5])
    x, state = frame(), state_of(cell_name)
    found = parts(cell(x, state, step=steps))
    for row, step in enumerate(steps.tolist()):
        alone = [part[row] for part in parts(state)]
        alone = tuple(alone) if cell_name == "LSTMCell" else alone[0]
        close([part[row] for part in found], parts(cell(x[row], alone, step=step)))


def test_a_normalised_cell_has_gradients_of_both_orders(cell_name, norm):
    cell = getattr(rnnorm, cell_name)(3, 2, norm=norm, **F64)
    x = torch.randn(4, 3, **F64, requires_grad=True)
    h = torch.randn(4, 2, **F64, requires_grad=True)
    c = torch.randn(4, 2, **F64, requires_grad=True)
    states = (h, c) if cell_name == "LSTMCell" else (h,)

    def run(x, *states):
        result = cell(x, states if cell_name == "LSTMCell" else states[0])
        return tuple(parts(result))

    assert gradcheck(run, (x, *states))
    assert gradgradcheck(run, (x, *states))


@pytest.mark.parametrize("wanted", ["", "x", "h", "c", "xhc"])
def test_a_step_has_the_gradients_that_are_wanted(cell_name, norm, wanted, close):
    def gradients(of_kernel):
        torch.manual_seed(0)
        cell = getattr(rnnorm, cell_name)(3, 4, norm=norm, **F64)
        given = [torch.randn(5, 3 if k == "x" else 4, **F64) for k in "xhc"]
        given = [t.requires_grad_(k in wanted) for k, t in zip("xhc", given, strict=True)]
        x, *states = given
        found = parts(cell(x, tuple(states) if cell_name == "LSTMCell" else states[0]))
        weights = torch.randn(2, 5, 4, **F64)
        loss = sum((w * part).sum() for w, part in zip(weights, found, strict=False))
        if of_kernel:
            # the kernel reads a copy of the state, which a user may change
            found[0].detach().zero_()
        loss.backward()
        return [t.grad for t in (*given, *cell.parameters())]

    with rnnorm.use_backend("reference"):
        expected = gradients(of_kernel=False)
    before = dispatch.calls["cpu"]
    found = gradients(of_kernel=True)
    assert dispatch.calls["cpu"] == before + 1
    assert [g is None for g in found] == [g is None for g in expected]
    close([g for g in found if g is not None], [g for g in expected if g is not None])


@pytest.mark.parametrize("step", [-1, 1.5, "0", torch.tensor([-1, 0, 0, 0, 0])], ids=repr)
def test_a_wrong_step_of_a_cell_is_an_error(cell_name, step):
    cell = getattr(rnnorm, cell_name)(3, 4, norm="batch", **F64)
    cell(frame())
    with pytest.raises((TypeError, ValueError), match="step"):
        cell.eval()(frame(), step=step)


def test_a_tensor_of_steps_in_training_is_an_error(cell_name):
    cell = getattr(rnnorm, cell_name)(3, 4, norm="batch", **F64)
    with pytest.raises(ValueError, match="step"):
        cell(frame(), step=torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("rows", [1, None])
def test_one_row_in_training_is_an_error(cell_name, rows):
    cell = getattr(rnnorm, cell_name)(3, 4, norm="batch", **F64)
    with pytest.raises(ValueError, match="row"):
        cell(frame(rows))


@pytest.mark.parametrize("rows", [1, None, 5])
def test_wrong_inputs_of_a_normalised_cell_are_errors(cell_name, norm, rows):
    cell = getattr(rnnorm, cell_name)(3, 4, norm=norm, **F64)
    narrow = torch.zeros(2, **F64) if rows is None else torch.zeros(rows, 2, **F64)
    with pytest.raises(ERRORS):
        cell(narrow)
    with pytest.raises(ERRORS):
        cell(frame(rows), state_of(cell_name, 3))
    with pytest.raises(ValueError, match="1D or 2D, got 3D"):
        cell(torch.zeros(1, 5, 3, **F64))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float32])
def test_an_input_of_another_dtype_fails_as_in_torch(cell_name, norm, dtype, same_error):
    x = torch.ones(5, 3, dtype=dtype)
    cell = getattr(rnnorm, cell_name)(3, 4, norm=norm, **F64)
    same_error(lambda: cell(x), lambda: getattr(nn, cell_name)(3, 4, **F64)(x))
    if norm == "batch":
        assert not cell.population_input.num_batches_tracked.any()


def test_sequence_scope_in_a_cell_is_an_error(cell_name):
    with pytest.raises(ValueError, match="sequence"):
        getattr(rnnorm, cell_name)(3, 4, norm=rnnorm.BatchNorm(input="sequence"))


def layer_and_cell(cell_name, norm):
    torch.manual_seed(0)
    sequence = getattr(rnnorm, cell_name.removesuffix("Cell"))
    layer = sequence(3, 4, norm=norm, initial_noise=0.0, **F64)
    cell = getattr(rnnorm, cell_name)(3, 4, norm=norm, **F64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-0.6, 0.6)
    cell.load_state_dict(
        {name.replace("_l0", ""): value for name, value in layer.state_dict().items()}
    )
    return layer, cell


@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_wrong_rank_is_told_before_states_that_are_no_tensors(norm, same_error):
    x, hx = torch.randn(2, 4, 3), [torch.zeros(4, 5)]
    same_error(lambda: rnnorm.GRUCell(3, 5, norm=norm)(x, hx), lambda: nn.GRUCell(3, 5)(x, hx))
