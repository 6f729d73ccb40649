"""A layer inside torch.compile and torch.export."""

import copy
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnorm
from rnnorm import tracing

# as by default in newer releases: the older compiler cannot take a layer
export = partial(torch.export.export, strict=False)


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


@pytest.fixture(scope="module")
def loops():
    if tracing.RELEASE < (2, 13):
        pytest.skip("programs have a loop, of the fused kernels or a scan, from torch 2.13 on")


@pytest.fixture
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


# every cell and every kind of norm once
CELL_AND_NORM = pytest.mark.parametrize(
    ("plain", "any_norm"),
    [
        ("LSTM", "batch"),
        ("GRU", "layer"),
        ("RNN", None),
        ("LSTM", {"input": "bn-e*", "recurrent": "layer", "cell": "rms"}),
    ],
    indirect=True,
)


@pytest.mark.slow
@CELL_AND_NORM
def test_a_compiled_model_trains_as_the_eager_one(plain, any_norm, close):
    eager = model(plain, any_norm)
    compiled = compiled_twin(eager, "aot_eager")
    for seed in (1, 2):
        x = plain.input(rows=4, seed=seed)
        close(descend(compiled, x), descend(eager, x))
        close(list(compiled.buffers()), list(eager.buffers()))
    x = plain.input(length=7)
    close(compiled.eval()(x), eager.eval()(x))


@pytest.mark.slow
# torch takes a graph that it kept under another ATEN_CPU_CAPABILITY, and its values are wrong
@torch._inductor.config.patch(fx_graph_cache=False)
# torch 2.6 says so of its own settings
@pytest.mark.filterwarnings("ignore:Skipping serialization of skipfiles:UserWarning")
def test_the_default_compiler_gives_the_same_training_step(close):
    torch.manual_seed(0)
    eager = Model(rnnorm.LSTM(3, 4, norm="batch", initial_noise=0.0, dtype=torch.float64), 4)
    compiled = compiled_twin(eager, "inductor")
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    close(descend(compiled, x), descend(eager, x))
    close(list(compiled.buffers()), list(eager.buffers()))


@pytest.mark.parametrize("plain", ["LSTM"], indirect=True)
def test_a_compiled_model_takes_lengths_and_steps(plain, close):
    eager = model(plain, "batch")
    compiled = compiled_twin(eager, "aot_eager")
    x = plain.input()
    options = {"lengths": torch.tensor([2, 5, 3])}
    close(descend(compiled, x, **options), descend(eager, x, **options))
    eager.eval(), compiled.eval()
    close(compiled(x, step=torch.tensor([0, 2, 1])), eager(x, step=torch.tensor([0, 2, 1])))


@pytest.mark.parametrize("lengths", [None, [5, 3, 2]])
def test_a_compiled_training_step_leaves_the_backward_pass_of_an_eager_layer_alone(lengths):
    layer = torch.compiler.disable(rnnorm.GRU(3, 4, norm="layer"))
    counter = CompileCounterWithBackend("eager")

    @torch.compile(backend=counter)
    def descend(x):
        layer(x, lengths=lengths)[0].sum().backward()

    descend(torch.randn(5, 3, 3))
    # the sum alone
    assert counter.frame_count == 1
    assert layer.weight_hh_l0.grad is not None


@pytest.mark.parametrize("plain", ["LSTM"], indirect=True)
def test_the_graph_does_not_grow_with_the_sequence(plain):
    operations = []
    for length in (2, 20):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        layers = compiled_twin(model(plain, "batch"), counter)
        layers(plain.input(length=length))
        operations.append(counter.op_count)
    assert 0 < operations[0] == operations[1]


def test_the_graph_of_an_older_compiler_breaks_at_a_layer(monkeypatch, close):
    monkeypatch.setattr(tracing, "RELEASE", (2, 9))

    class Older(rnnorm.LSTM):
        forward = tracing.compiled_by_new_torch(rnnorm.LSTM.forward)

    torch.manual_seed(0)
    eager = Model(Older(3, 4, norm="batch", initial_noise=0.0, dtype=torch.float64), 4)
    counter = CompileCounterWithBackend("eager")
    compiled = compiled_twin(eager, counter)
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    close(descend(compiled, x), descend(eager, x))
    # what stands before it and after it
    assert counter.frame_count == 2


@pytest.mark.slow
def test_another_length_compiles_nothing_of_the_recurrence_again():
    counter = CompileCounterWithBackend("eager")
    layers = Model(rnnorm.GRU(3, 4, norm="batch", dtype=torch.float64), 4)
    layers.compile(backend=counter)
    for length in (3, 4, 5, 6, 7):
        layers(torch.randn(length, 3, 3, dtype=torch.float64))
    assert counter.frame_count <= 6


@CELL_AND_NORM
def test_an_exported_layer_gives_the_same_values(plain, any_norm, close):
    layer = plain.rnnorm(norm=any_norm)
    layer(plain.input())
    layer.eval()
    exported = export(layer, (plain.input(length=2), plain.state())).module()
    for seed in (1, 9):
        arguments = plain.input(length=2, seed=seed), plain.state(seed=seed)
        close(exported(*arguments), layer(*arguments, step=0))


@pytest.mark.parametrize("plain", ["GRU"], indirect=True)
def test_an_exported_layer_trains_though_exported_without_gradients(plain, close):
    layer = plain.rnnorm(norm="batch")
    layer(plain.input())
    layer.eval()
    with torch.no_grad():
        exported = export(layer, (plain.input(),)).module()
    x, twin = (plain.input(seed=9).requires_grad_() for _ in range(2))
    exported(x)[0].pow(2).sum().backward()
    layer(twin)[0].pow(2).sum().backward()
    close(x.grad, twin.grad)
    close(exported.weight_hh_l0.grad, layer.weight_hh_l0.grad)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("plain", ["RNN"], indirect=True)
def test_an_exported_layer_takes_any_length(plain, close):
    layer = plain.rnnorm(norm="batch")
    layer(plain.input(length=4))
    layer.eval()
    steps, rows = (torch.export.Dim(name, min=2, max=64) for name in ("steps", "rows"))
    sizes = ({0: steps, 1: rows},)
    exported = export(layer, (plain.input(),), dynamic_shapes=sizes).module()
    for length, count in ((2, 3), (7, 5)):
        x = plain.input(rows=count, length=length)
        close(exported(x), layer(x))


@pytest.mark.parametrize("norm", ["batch", "layer", None])
def test_an_exported_layer_takes_an_input_however_it_is_laid_out(norm, close):
    layer = shaken(rnnorm.LSTM(3, 4, norm=norm, dtype=torch.float64))
    exported = export(layer, (torch.randn(5, 2, 3, dtype=torch.float64),)).module()
    x = torch.randn(2, 5, 3, dtype=torch.float64).transpose(0, 1)
    one, two = (x.detach().requires_grad_() for _ in range(2))
    assert not one.is_contiguous()
    close(exported(one), layer(two))
    for model, leaf in ((exported, one), (layer, two)):
        model(leaf)[0].pow(2).sum().backward()
    close(one.grad, two.grad)


# directions and layers are the same code for every cell
@pytest.mark.parametrize("deep", ["LSTM"], indirect=True)
def test_an_exported_stack_gives_the_same_values(deep, close):
    layer = deep.rnnorm(norm="batch")
    layer(deep.input())
    layer.eval()
    exported = export(layer, (deep.input(length=2),)).module()
    other = deep.input(length=2, seed=9)
    close(exported(other), layer(other))


def test_an_exported_model_is_saved_and_loaded(tmp_path, close):
    layer = rnnorm.LSTM(3, 4, norm="batch", batch_first=True)
    x = torch.randn(2, 2, 3)
    layer(x)
    layer.eval()
    torch.export.save(export(layer, (x,)), tmp_path / "layer.pt2")
    close(torch.export.load(tmp_path / "layer.pt2").module()(x), layer(x))


def shaken(layer):
    """A layer in evaluation whose γ differ, with statistics of six steps."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "gamma" in name:
                parameter.uniform_(0.5, 1.0)
    if any(True for _ in layer.buffers()):
        for scale in (1, 2):
            layer(scale * torch.randn(6, 9, 3, dtype=torch.float64))
    return layer.eval()


# each of them runs under torch's scan: no fused kernel has them, or none is asked for
SCANNED = {
    "LSTM-peephole-carry-projection": lambda **o: rnnorm.LSTM(
        3, 4, norm="carry", peephole="all", proj_size=2, bidirectional=True, **o
    ),
    "GRU-before-joint-zoneout": lambda **o: rnnorm.GRU(
        3,
        4,
        norm=rnnorm.BatchNorm(input=None, recurrent=None, joint="frame"),
        reset_after=False,
        recurrent_dropout=rnnorm.Zoneout(cell=0, hidden=0.2),
        **o,
    ),
    "RNN-layer-norm": lambda **o: rnnorm.RNN(3, 4, norm="layer", learn_initial_state=True, **o),
    "LSTM-mixed": lambda **o: rnnorm.LSTM(
        3,
        4,
        norm={
            "input": rnnorm.BatchNorm(input="sequence", eps=0.1),
            "recurrent": rnnorm.RMSNorm(over="gate"),
            "carry": "batch",
        },
        **o,
    ),
    "Clockwork-shared": lambda **o: rnnorm.ClockworkRNN(
        3, 4, periods=(1, 3), norm=rnnorm.BatchNorm(population="shared"), **o
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("make", SCANNED.values(), ids=SCANNED)
def test_an_exported_layer_of_any_cell_takes_any_sizes(make, close):
    torch.manual_seed(0)
    layer = shaken(make(dtype=torch.float64))

    def inputs(length, rows):
        lengths = torch.randint(1, length + 1, (rows,))
        ages = {} if layer.bidirectional else {"step": torch.randint(0, 9, (rows,))}
        return {
            "input": torch.randn(length, rows, 3, dtype=torch.float64),
            "lengths": lengths,
            **ages,
        }

    steps, rows = (torch.export.Dim(name, min=1, max=64) for name in ("steps", "rows"))
    sizes = {"input": {0: steps, 1: rows}, "lengths": {0: rows}, "step": {0: rows}}
    example = inputs(4, 3)
    sizes = {name: sizes[name] for name in example}
    with rnnorm.use_backend("scan"):
        exported = export(layer, (), example, dynamic_shapes=sizes).module()
    for length, count in ((7, 5), (1, 1)):
        other = inputs(length, count)
        other["input"][int(other["lengths"][0]) :, 0] = float("nan")
        close(exported(**other), layer(**other))


@pytest.mark.slow
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("backend", ["scan", "reference"])
def test_a_program_of_one_length_goes_beyond_the_last_statistic(backend, frozen, close):
    layer = shaken(rnnorm.LSTM(3, 4, norm="batch", dtype=torch.float64))
    layer = rnnorm.freeze(layer) if frozen else layer
    x = torch.randn(20, 2, 3, dtype=torch.float64)
    assert 1 < len(layer.population_cell_l0) < 20
    with rnnorm.use_backend(backend), torch.no_grad():
        exported = export(layer, (x,)).module()
    close(exported(x), layer(x))


@pytest.mark.usefixtures("loops")
def test_a_layer_without_a_norm_takes_any_length_without_being_told_how(close):
    layer = rnnorm.GRU(3, 4, dtype=torch.float64).eval()
    steps, rows = (torch.export.Dim(name) for name in ("steps", "rows"))
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    exported = export(layer, (x,), dynamic_shapes=({0: steps, 1: rows},)).module()
    other = torch.randn(6, 4, 3, dtype=torch.float64)
    close(exported(other), layer(other))


@pytest.mark.slow
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("state", ["learned", "from_input", "given"])
def test_a_scanned_program_takes_an_initial_state_however_it_is_laid_out(state, close):
    learned = {"learned": True, "from_input": "from_input", "given": False}[state]
    # which part of a state is which layer's
    count = 2 if state == "given" else 1
    options = {"norm": "batch", "num_layers": count, "learn_initial_state": learned}
    layer = shaken(rnnorm.GRU(3, 4, dtype=torch.float64, **options))

    def inputs(length, rows):
        x = torch.randn(length, rows, 3, dtype=torch.float64)
        transposed = torch.randn(2, 4, rows, dtype=torch.float64).transpose(1, 2)
        return (x, transposed) if state == "given" else (x,)

    steps, rows = (torch.export.Dim(name, min=1, max=64) for name in ("steps", "rows"))
    sizes = ({0: steps, 1: rows}, {1: rows})
    example = inputs(4, 3)
    with rnnorm.use_backend("scan"):
        exported = export(layer, example, dynamic_shapes=sizes[: len(example)])
    other = inputs(7, 5)
    close(exported.module()(*other), layer(*other, step=0))


@pytest.fixture(scope="module")
def scanned(loops):
    """A layer, an input with its lengths, and the program of both, exported without gradients."""
    torch.manual_seed(0)
    layer = shaken(rnnorm.LSTM(3, 4, norm="batch", dtype=torch.float64))
    x, lengths = torch.randn(5, 3, 3, dtype=torch.float64), torch.tensor([5, 2, 3])
    given = {"input": x, "lengths": lengths}
    sizes = {"input": {0: torch.export.Dim("steps", min=1)}, "lengths": None}
    with rnnorm.use_backend("scan"), torch.no_grad():
        return layer, given, export(layer, (), given, dynamic_shapes=sizes)


def test_a_scanned_program_has_the_gradients_though_exported_without(scanned, close):
    layer, given, exported = scanned
    x, lengths = given.values()
    padded = x.clone()
    padded[2:, 1] = float("nan")
    twins = [padded.clone().requires_grad_() for _ in range(2)]
    found = [
        torch.autograd.grad(
            model(input=twin, lengths=lengths)[0].pow(2).sum(), [twin, *model.parameters()]
        )
        for model, twin in zip((exported.module(), layer), twins, strict=True)
    ]
    close(*found)


@pytest.mark.usefixtures("loops")
def test_a_program_of_training_drops_inputs_once(close):
    dropout = rnnorm.SequenceDropout(input=0.5)
    given = {"norm": "layer", "reset_after": False, "initial_noise": 0.0, "dtype": torch.float64}
    layer = rnnorm.GRU(3, 4, recurrent_dropout=dropout, **given)
    torch.nn.init.uniform_(layer.bias_ih_l0, 1, 2)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    with rnnorm.use_backend("scan"):
        exported = export(layer, (x,)).module()
    outputs = []
    for model in (exported, layer):
        torch.manual_seed(1)
        outputs.append(model(x))
    close(*outputs)


@pytest.mark.usefixtures("loops")
def test_the_scan_is_for_programs_alone():
    layer = rnnorm.LSTM(3, 4, norm="batch").eval()
    said = pytest.raises(RuntimeError, match=r"'scan' does not cover .* torch\.export")
    with rnnorm.use_backend("scan"), said:
        layer(torch.randn(2, 2, 3))


@pytest.mark.slow
def test_an_exported_program_runs_in_another_process_without_rnnorm(scanned, tmp_path):
    layer, _, exported = scanned
    torch.export.save(exported, tmp_path / "layer.pt2")
    x, lengths = torch.randn(9, 3, 3, dtype=torch.float64), torch.tensor([9, 4, 7])
    longer = {"input": x, "lengths": lengths}
    torch.save((longer, layer(**longer)[0].detach()), tmp_path / "pair.pt")
    code = (
        "import sys, torch\n"
        "program = torch.export.load('layer.pt2').module()\n"
        "given, wanted = torch.load('pair.pt')\n"
        "torch.testing.assert_close(program(**given)[0], wanted)\n"
        "assert 'rnnorm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.usefixtures("loops")
def test_a_fused_program_runs_in_another_process_that_imports_its_operators(tmp_path):
    if rnnorm.backends()["cpu"]:
        pytest.skip(rnnorm.backends()["cpu"])
    layer, x = rnnorm.LSTM(3, 4, norm="layer").eval(), torch.randn(5, 2, 3)
    torch.export.save(export(layer, (x,)), tmp_path / "layer.pt2")
    torch.save((x, layer(x)[0].detach()), tmp_path / "pair.pt")
    code = (
        "import rnnorm.export, torch\n"
        "program = torch.export.load('layer.pt2').module()\n"
        "x, wanted = torch.load('pair.pt')\n"
        "torch.testing.assert_close(program(x)[0], wanted)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_an_export_of_a_packed_batch_names_lengths(scanned):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = scanned[0]

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
            return pad_packed_sequence(self.layer(packed)[0])[0]

    x, lengths = scanned[1].values()
    with pytest.raises(RuntimeError, match=r"does not take pack_padded_sequence: .* lengths="):
        export(Encoder(), (x, lengths))


@pytest.mark.usefixtures("loops")
def test_a_program_of_training_with_shared_statistics_takes_any_length(close):
    if rnnorm.backends()["cpu"]:
        pytest.skip(rnnorm.backends()["cpu"])
    norm = rnnorm.BatchNorm(population="shared")
    layer = rnnorm.LSTM(3, 4, norm=norm, initial_noise=0, dtype=torch.float64)
    x = torch.randn(9, 12, 3, dtype=torch.float64)
    sizes = ({0: torch.export.Dim("steps", min=2)},)
    program = export(layer, (x[:6],), dynamic_shapes=sizes).module()
    close(program(x), copy.deepcopy(layer)(x))
