"""Whoever else looks on while a layer runs: tracers, forward-mode AD, batched gradients."""

import copy
import io

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnorm

F64 = {"dtype": torch.float64}


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm="batch", **F64)
    layer(torch.randn(6, 5, 3, **F64))
    return layer.eval()


def draw(steps=5, rows=4):
    return torch.randn(steps, rows, 3, **F64)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_layer_gives_the_same_values_at_other_sizes(layer, grad):
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(layer, (draw(),), check_trace=False)
    # the population has 6 steps
    for x in (draw(), draw(steps=2), draw(steps=9), draw(rows=7)):
        torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracing_refuses_what_it_would_freeze(layer):
    class WithLengths(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, lengths=[5, 5, 5, 3])

    with pytest.raises(RuntimeError, match="lengths"):
        torch.jit.trace(WithLengths(), (draw(),))
    with pytest.raises(RuntimeError, match="evaluation"):
        torch.jit.trace(layer.train(), (draw(),))
    with pytest.raises(RuntimeError, match="evaluation"):
        torch.jit.trace(rnnorm.LSTMCell(3, 4, norm="batch", **F64), (draw()[0],))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_traced_layer_keeps_no_sizes_of_a_packed_sequence(layer, backend):
    if rnnorm.backends()[backend]:
        pytest.skip(rnnorm.backends()[backend])

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
            return pad_packed_sequence(self.layer(packed)[0])[0]

    x, other = draw(), torch.tensor([2, 5, 5, 1])
    with rnnorm.use_backend(backend), torch.no_grad():
        if backend == "reference":
            with pytest.raises(RuntimeError, match=r"no PackedSequence in torch\.jit\.trace"):
                torch.jit.trace(Encoder(), (x, torch.tensor([5, 3, 2, 4])))
            return
        example = x, torch.tensor([5, 3, 2, 4])
        traced = torch.jit.trace(Encoder().eval(), example, check_trace=False)
        torch.testing.assert_close(traced(x, other), Encoder()(x, other))


@pytest.mark.skipif(bool(rnnorm.backends()["cpu"]), reason=rnnorm.backends()["cpu"])
@pytest.mark.filterwarnings("ignore")
def test_onnx_by_tracing_names_what_takes_its_place(layer):
    class Model(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, x):
            return self.part(x)[0]

    for part, x in ((layer, draw()), (rnnorm.LSTMCell(3, 4, norm="layer", **F64), draw()[0])):
        with pytest.raises(RuntimeError, match=r"dynamo=False\) .* rnnorm\.export\.onnx"):
            torch.onnx.export(Model(part).eval(), (x,), io.BytesIO(), dynamo=False)


def test_scripting_names_what_takes_its_place(layer):
    for model in (layer, nn.Sequential(rnnorm.LSTMCell(3, 4))):
        with pytest.raises(RuntimeError, match=r"does not take LSTM.* rnnorm\.fold"):
            torch.jit.script(model)


def test_a_symbolic_trace_needs_the_layer_as_a_leaf(layer):
    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, nn.RNNBase) or super().is_leaf_module(module, name)

    model = nn.Sequential(layer)
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(model)
    traced, x = torch.fx.GraphModule(model, Leaves().trace(model)), draw()
    torch.testing.assert_close(traced(x), model(x))


def test_make_fx_traces_a_first_evaluation(layer):
    traced, x = make_fx(layer)(draw()), draw()
    torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.parametrize("norm", ["batch", "layer", None])
@pytest.mark.parametrize("training", [True, False])
def test_fake_tensors_find_out_shapes(norm, training):
    with FakeTensorMode():
        output, (h, c) = rnnorm.LSTM(3, 4, norm=norm).train(training)(torch.randn(6, 5, 3))
    assert (output.shape, h.shape, c.shape) == ((6, 5, 4), (1, 5, 4), (1, 5, 4))


@pytest.mark.parametrize("grad", [True, False])
def test_forward_mode_derivatives_are_right(layer, grad):
    x, direction, small = draw(), draw(), 1e-6
    with torch.set_grad_enabled(grad), forward_ad.dual_level():
        output, _ = layer(forward_ad.make_dual(x, direction))
        found = forward_ad.unpack_dual(output).tangent
    with torch.no_grad():
        after, before = layer(x + small * direction)[0], layer(x - small * direction)[0]
    torch.testing.assert_close(found, (after - before) / (2 * small), rtol=1e-6, atol=1e-8)


def test_batched_gradients_are_those_one_by_one(layer):
    x = draw().requires_grad_()
    output, _ = layer(x)
    upstream = torch.randn(3, *output.shape, **F64)
    (found,) = torch.autograd.grad(output, x, upstream, retain_graph=True, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(output, x, g, retain_graph=True)[0] for g in upstream]
    torch.testing.assert_close(found, torch.stack(one_by_one))


def test_a_subclass_of_tensor_gets_the_same_values(layer):
    class Labelled(torch.Tensor):
        pass

    x = draw()
    output, _ = layer(x.as_subclass(Labelled))
    assert isinstance(output, Labelled)
    torch.testing.assert_close(output.as_subclass(torch.Tensor), layer(x)[0])


@pytest.mark.parametrize("with_state", [False, True])
def test_an_ensemble_under_vmap_gives_each_models_values(with_state):
    torch.manual_seed(0)
    layers = [rnnorm.LSTM(3, 4, norm="batch", **F64) for _ in range(3)]
    x = draw()
    for layer in layers:
        layer(x)
        layer.eval()
    arguments = (x, (torch.zeros(1, 4, 4, **F64),) * 2) if with_state else (x,)
    parameters, buffers = torch.func.stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")

    def one(parameters, buffers):
        return torch.func.functional_call(base, (parameters, buffers), arguments)[0]

    found = torch.vmap(one)(parameters, buffers)
    for layer, own in zip(layers, found, strict=True):
        torch.testing.assert_close(own, layer(*arguments, step=0)[0])


CLASSES = [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU, rnnorm.RNNCell, rnnorm.LSTMCell, rnnorm.GRUCell]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_layer_without_a_norm_runs_under_vmap(cls):
    torch.manual_seed(0)
    layers, x = [cls(3, 4, **F64) for _ in range(3)], draw()
    x = x[0] if "Cell" in cls.__name__ else x
    parameters, _ = torch.func.stack_module_state(layers)
    one = dict(layers[0].named_parameters())

    def output(parameters, x):
        return torch.func.functional_call(layers[0], parameters, (x,))[0]

    ensemble = torch.vmap(output, (0, None))(parameters, x)
    inputs = torch.stack([x, 2 * x, -x])
    gradient = torch.func.grad(lambda parameters, x: output(parameters, x).square().sum())
    gradients = torch.vmap(gradient, (None, 0))(one, inputs)
    for k, layer in enumerate(layers):
        torch.testing.assert_close(ensemble[k], layer(x)[0])
        for name, expected in gradient(one, inputs[k]).items():
            torch.testing.assert_close(gradients[name][k], expected)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_layer_without_a_norm_has_forward_mode_derivatives(cls):
    torch.manual_seed(0)
    layer, x = cls(3, 4), draw().float()
    x = x[0] if "Cell" in cls.__name__ else x
    _, found = torch.func.jvp(lambda x: layer(x)[0], (x,), (torch.ones_like(x),))
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x)
    torch.testing.assert_close(found, jacobian.flatten(-x.dim()).sum(-1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("lengths", [None, [6, 6, 3, 3, 3, 3, 3, 3]])
@pytest.mark.parametrize("options", [{}, {"population": "shared"}, {"momentum": None}], ids=str)
def test_an_ensemble_that_trains_under_vmap_takes_each_models_statistics(options, lengths):
    torch.manual_seed(0)
    norm = rnnorm.BatchNorm(horizon=6, min_rows=4, **options)
    layers = [rnnorm.LSTM(3, 4, norm=norm, initial_noise=0, **F64) for _ in range(3)]
    x = draw(steps=6, rows=8)
    parameters, buffers = torch.func.stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")

    def one(parameters, buffers):
        given = {} if lengths is None else {"lengths": lengths}
        return torch.func.functional_call(base, (parameters, buffers), (x,), given)[0]

    found = torch.vmap(one)(parameters, buffers)
    for k, layer in enumerate(layers):
        torch.testing.assert_close(found[k], layer(x, lengths=lengths)[0])
        for name, buffer in layer.named_buffers():
            torch.testing.assert_close(buffers[name][k], buffer)


def test_too_few_rows_within_a_transform_are_counted():
    layer = rnnorm.LSTM(3, 4, norm="batch", **F64)

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (draw(rows=1),))[0].sum()

    with pytest.raises(ValueError, match="at least 2 active rows at step 0 in training, got 1"):
        torch.func.grad(loss)(dict(layer.named_parameters()))


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_transform_has_left_behind_is_taken_as_it_is(recorded):
    cell, left = rnnorm.LSTMCell(3, 4, norm="layer", **F64), []

    def loss(x):
        left.append(x.sin())
        return x.sum()

    x = draw()[0]
    torch.func.grad(loss)(x)
    with torch.set_grad_enabled(recorded):
        torch.testing.assert_close(cell(left[0])[0], cell(x.sin())[0])


def test_rows_at_different_ages_under_vmap(layer):
    x, ages = draw(), torch.tensor([[0, 1, 2, 3], [3, 0, 0, 5]])
    state = (torch.zeros(1, 4, 4, **F64),) * 2
    found = torch.vmap(lambda step: layer(x, state, step=step)[0])(ages)
    torch.testing.assert_close(found, torch.stack([layer(x, state, step=s)[0] for s in ages]))


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_hooks_on_saved_tensors_may_give_them_other_strides(norm):
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm=norm, initial_noise=0, **F64)
    leaves, x = list(layer.parameters()), draw()

    def turned(tensor):
        return tensor.mT.contiguous() if tensor.dim() > 1 else tensor

    def back(tensor):
        return tensor.mT if tensor.dim() > 1 else tensor

    with torch.autograd.graph.saved_tensors_hooks(turned, back):
        output = layer(x)[0]
    found = torch.autograd.grad(output, leaves, output.detach())
    output = layer(x)[0]
    torch.testing.assert_close(found, torch.autograd.grad(output, leaves, output.detach()))


def test_lengths_that_vmap_maps_are_refused():
    gru, lengths = rnnorm.GRU(3, 4, norm="layer"), torch.tensor([[3], [5]])
    with pytest.raises(RuntimeError, match=r"lengths must not be mapped by torch\.func\.vmap"):
        torch.func.vmap(lambda x, n: gru(x, lengths=n)[0])(torch.randn(2, 5, 1, 3), lengths)
