"""A layer inside torch.compile and torch.export."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import rnnorm

pytestmark = [
    # the compiler's own, which it hides from those to whom warnings are no errors
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


class Model(nn.Module):
    """A recurrent layer between two linear ones."""

    def __init__(self, layer, width):
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.layer = layer
        self.last = nn.Linear(width, 2, dtype=torch.float64)

    def forward(self, x, **options):
        output, _ = self.layer(torch.relu(self.first(x)), **options)
        return self.last(output).tanh()


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=[None, "batch", "layer"], ids=["none", "batch", "layer"])
def any_norm(request):
    return request.param


def model(sequence, norm):
    layer = sequence.rnnorm(norm=norm)
    width = sequence.options.get("proj_size", 4) * (1 + sequence.options.get("bidirectional", 0))
    return Model(layer, width)


def descend(model, x, **options):
    """Output and gradients of one training step."""
    model.zero_grad()
    output = model(x, **options)
    output.pow(2).sum().backward()
    return output.detach(), [parameter.grad for parameter in model.parameters()]


def compiled_twin(eager, backend):
    twin = copy.deepcopy(eager)
    twin.compile(backend=backend)
    return twin


def test_a_compiled_model_trains_as_the_eager_one(plain, any_norm, close):
    eager = model(plain, any_norm)
    compiled = compiled_twin(eager, "aot_eager")
    for seed in (1, 2):
        x = plain.input(rows=4, seed=seed)
        close(descend(compiled, x), descend(eager, x))
        close(list(compiled.buffers()), list(eager.buffers()))
    x = plain.input(length=7)
    close(compiled.eval()(x), eager.eval()(x))


def test_a_compiled_model_of_a_deep_layer_trains_as_the_eager_one(close):
    # directions and layers are the same code for every cell
    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": True, "initial_noise": 0.0}
    eager = Model(rnnorm.RNN(3, 4, norm="batch", dtype=torch.float64, **options), 8)
    compiled = compiled_twin(eager, "aot_eager")
    x = torch.randn(5, 3, 3, dtype=torch.float64)
    close(descend(compiled, x), descend(eager, x))


def test_the_default_compiler_gives_the_same_training_step(close):
    torch.manual_seed(0)
    eager = Model(rnnorm.LSTM(3, 4, norm="batch", initial_noise=0.0, dtype=torch.float64), 4)
    compiled = compiled_twin(eager, "inductor")
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    close(descend(compiled, x), descend(eager, x))
    close(list(compiled.buffers()), list(eager.buffers()))


def test_a_compiled_model_takes_lengths_and_steps(plain, close):
    eager = model(plain, "batch")
    compiled = compiled_twin(eager, "aot_eager")
    x = plain.input()
    options = {"lengths": torch.tensor([2, 5, 3])}
    close(descend(compiled, x, **options), descend(eager, x, **options))
    eager.eval(), compiled.eval()
    close(compiled(x, step=torch.tensor([0, 2, 1])), eager(x, step=torch.tensor([0, 2, 1])))


@pytest.mark.parametrize("name", ["batch", "layer"])
def test_the_graph_does_not_grow_with_the_sequence(plain, name):
    operations = []
    for length in (2, 20):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        layers = compiled_twin(model(plain, name), counter)
        layers(plain.input(length=length))
        operations.append(counter.op_count)
    assert 0 < operations[0] == operations[1]


def test_another_length_compiles_nothing_of_the_recurrence_again():
    counter = CompileCounterWithBackend("eager")
    layers = Model(rnnorm.GRU(3, 4, norm="batch", dtype=torch.float64), 4)
    layers.compile(backend=counter)
    for length in (3, 4, 5, 6, 7):
        layers(torch.randn(length, 3, 3, dtype=torch.float64))
    assert counter.frame_count <= 6


def test_an_exported_layer_gives_the_same_values(plain, any_norm, close):
    layer = plain.rnnorm(norm=any_norm)
    layer(plain.input())
    layer.eval()
    exported = torch.export.export(layer, (plain.input(length=2), plain.state())).module()
    for seed in (1, 9):
        arguments = plain.input(length=2, seed=seed), plain.state(seed=seed)
        close(exported(*arguments), layer(*arguments, step=0))


def test_an_exported_layer_trains_though_exported_without_gradients(plain, close):
    layer = plain.rnnorm(norm="batch")
    layer(plain.input())
    layer.eval()
    with torch.no_grad():
        exported = torch.export.export(layer, (plain.input(),)).module()
    x, twin = (plain.input(seed=9).requires_grad_() for _ in range(2))
    exported(x)[0].pow(2).sum().backward()
    layer(twin)[0].pow(2).sum().backward()
    close(x.grad, twin.grad)
    close(exported.weight_hh_l0.grad, layer.weight_hh_l0.grad)


def test_an_exported_layer_takes_any_length(plain, close):
    layer = plain.rnnorm(norm="batch")
    layer(plain.input(length=4))
    layer.eval()
    steps, rows = (torch.export.Dim(name, min=2, max=64) for name in ("steps", "rows"))
    sizes = ({0: steps, 1: rows},)
    exported = torch.export.export(layer, (plain.input(),), dynamic_shapes=sizes).module()
    for length, count in ((2, 3), (7, 5)):
        x = plain.input(rows=count, length=length)
        close(exported(x), layer(x))


def test_an_exported_stack_gives_the_same_values(deep, close):
    layer = deep.rnnorm(norm="batch")
    layer(deep.input())
    layer.eval()
    exported = torch.export.export(layer, (deep.input(length=2),)).module()
    other = deep.input(length=2, seed=9)
    close(exported(other), layer(other))


def test_an_exported_model_is_saved_and_loaded(tmp_path, close):
    layer = rnnorm.LSTM(3, 4, norm="batch", batch_first=True)
    x = torch.randn(2, 2, 3)
    layer(x)
    layer.eval()
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "layer.pt2")
    close(torch.export.load(tmp_path / "layer.pt2").module()(x), layer(x))
