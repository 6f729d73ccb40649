"""An ONNX file gives a layer's values in onnxruntime, at sizes other than its example's."""

import errno
import os

import numpy as np
import pytest
import torch
from torch import nn

import rnnorm
from rnnorm import export
from rnnorm.export import comparison
from rnnorm.tracing import RELEASE

onnxruntime = pytest.importorskip("onnxruntime")

# every cell, kind of norm, scope, direction and dtype occurs, and ragged rows of all ages
CASES = {
    "LSTM-batch": (rnnorm.LSTM(3, 4, norm="batch"), torch.float64, ("lengths", "step")),
    "LSTM-layer-both-directions": (
        rnnorm.LSTM(3, 4, norm="layer", bidirectional=True, proj_size=2),
        torch.float64,
        ("lengths",),
    ),
    "GRU-sequence": (rnnorm.GRU(3, 4, norm="bn-e*"), torch.float32, ("step",)),
    "RNN-joint-shared": (
        rnnorm.RNN(
            3,
            4,
            nonlinearity="relu",
            norm=rnnorm.BatchNorm(
                input=None, recurrent=None, joint="frame", population="shared", eps=0.01
            ),
            batch_first=True,
        ),
        torch.float16,
        ("lengths",),
    ),
    "LSTM-rms-carry": (
        rnnorm.LSTM(3, 4, norm=rnnorm.RMSNorm(cell=False, carry=True, over="gate")),
        torch.float64,
        ("lengths",),
    ),
    "GRU-mixed": (
        rnnorm.GRU(3, 4, norm={"input": "batch", "recurrent": rnnorm.LayerNorm(over="term")}),
        torch.float64,
        ("lengths", "step"),
    ),
    "LSTM-none-deep": (rnnorm.LSTM(3, 4, 2, bias=False), torch.float32, ()),
    "Clockwork": (
        rnnorm.ClockworkRNN(3, 4, periods=(1, 3), norm="batch"),
        torch.float64,
        ("step",),
    ),
    "LSTM-layer-resets": (
        rnnorm.LSTM(3, 4, 2, norm="layer"),
        torch.float64,
        ("lengths", "step", "reset"),
    ),
    "Clockwork-resets": (
        rnnorm.ClockworkRNN(3, 4, periods=(1, 3), batch_first=True),
        torch.float64,
        ("step", "reset"),
    ),
}


def prepared(layer, dtype):
    torch.manual_seed(0)
    layer = layer.to(dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "gamma" in name:
                parameter.uniform_(0.5, 1.0)
    if any(True for _ in layer.buffers()):
        for scale in (1, 2):
            layer.train()(scale * torch.randn(9, 9, 3, dtype=dtype))
    return layer.eval()


def inputs(layer, dtype, names, length, rows):
    x = torch.randn(length, rows, 3, dtype=dtype)
    lengths = torch.randint(1, length + 1, (rows,))
    given = {"lengths": lengths, "step": torch.randint(0, 12, (rows,))}
    given["reset"] = torch.rand(x.shape[:2]) < 0.3
    given["reset"] = given["reset"].T if layer.batch_first else given["reset"]
    return (x.transpose(0, 1) if layer.batch_first else x), {name: given[name] for name in names}


def run(path, *tensors):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [put.name for put in session.get_inputs()]
    feed = {name: t.numpy() for name, t in zip(names, tensors, strict=True)}
    return [torch.from_numpy(found) for found in session.run(None, feed)]


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "dtype", "names"), CASES.values(), ids=CASES)
@torch.no_grad()
def test_a_file_gives_the_values_of_the_layer(layer, dtype, names, tmp_path):
    layer = prepared(layer, dtype)
    x, given = inputs(layer, dtype, names, 4, 3)
    sizes = rnnorm.export.onnx(layer, (x,), tmp_path / "layer.onnx", kwargs=given)
    assert list(sizes) == ["input", *names]
    assert sizes["input"][2] == 3
    assert not any(isinstance(size, int) for size in sizes["input"][:2])
    for length, rows in ((11, 5), (1, 1)):
        x, given = inputs(layer, dtype, names, length, rows)
        output, state = layer(x, **given)
        wanted = [output, *(state if isinstance(state, tuple) else (state,))]
        found = run(tmp_path / "layer.onnx", x, *given.values())
        tolerance = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 5e-3}[dtype]
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@torch.no_grad()
def test_openvino_gives_the_values_of_the_layer(norm, tmp_path):
    openvino = pytest.importorskip("openvino")
    layer, path = prepared(rnnorm.LSTM(3, 4, norm=norm), torch.float32), tmp_path / "lstm.onnx"
    rnnorm.export.onnx(layer, (torch.randn(4, 2, 3),), path)
    x = torch.randn(11, 5, 3)
    compiled = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    torch.testing.assert_close(torch.from_numpy(compiled([x.numpy()])[0]), layer(x)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(RELEASE < (2, 13), reason="torch's scan cannot be exported")
@torch.no_grad()
def test_executorch_gives_the_values_of_a_frozen_layer():
    exir = pytest.importorskip("executorch.exir", exc_type=ImportError)
    runtime = pytest.importorskip("executorch.runtime", exc_type=ImportError)
    layer, x = prepared(rnnorm.LSTM(3, 4, norm="batch"), torch.float32), torch.randn(4, 2, 3)
    frozen = rnnorm.freeze(layer)
    with rnnorm.use_backend("scan"):
        program = torch.export.export(frozen, (x,))
    file = exir.to_edge(program).to_executorch().buffer
    forward = runtime.Runtime.get().load_program(file).load_method("forward")
    torch.testing.assert_close(forward.execute([x])[0], layer(x)[0])


@torch.no_grad()
def test_rounding_that_a_recurrence_enlarges_is_a_warning(tmp_path):
    # as layer norm with γ = 1 does in 200 steps of 320 units
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 32, norm=rnnorm.LayerNorm(gamma=2.0)).eval()
    x = torch.randn(60, 2, 3)
    with pytest.warns(UserWarning, match="moves by .* last bit: so many steps enlarge"):
        rnnorm.export.onnx(layer, (x,), tmp_path / "lstm.onnx")
    # which the same file does not do in few steps
    found, want = run(tmp_path / "lstm.onnx", x[:5])[0], layer(x[:5])[0]
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_another_function_is_an_error_however_much_the_recurrence_enlarges(tmp_path, monkeypatch):
    layer = rnnorm.LSTM(3, 32, norm=rnnorm.LayerNorm(gamma=2.0)).eval()
    right = export.translations()
    wrong = {torch.ops.aten.layer_norm.default: lambda input, *rest: input}
    monkeypatch.setattr(export, "translations", lambda: right | wrong)
    with pytest.raises(RuntimeError, match=r"another .* than the model"):
        rnnorm.export.onnx(layer, (torch.randn(9, 2, 3),), tmp_path / "lstm.onnx")


@torch.no_grad()
def test_states_go_in_and_out_frame_by_frame(tmp_path):
    layer = prepared(rnnorm.LSTM(3, 4, norm="batch"), torch.float64)
    state = (torch.zeros(1, 2, 4, dtype=torch.float64), torch.zeros(1, 2, 4, dtype=torch.float64))
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    rnnorm.export.onnx(
        layer, (x, state), tmp_path / "layer.onnx", kwargs={"step": torch.tensor([0, 0])}
    )
    whole, last = layer(x, state, step=0)
    outputs = []
    for step, frame in enumerate(x):
        ages = torch.full((2,), step)
        output, *state = run(tmp_path / "layer.onnx", frame.unsqueeze(0), *state, ages)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole)
    torch.testing.assert_close(tuple(state), last)


@torch.no_grad()
def test_the_table_serves_an_export_of_ones_own(tmp_path):
    # not frozen: its statistics are looked up by what torch.onnx cannot translate
    layer = prepared(rnnorm.GRU(3, 4, norm="batch"), torch.float32)
    layer.population_input_l0.num_batches_tracked[[0, 3]] = 0
    x, given = inputs(layer, torch.float32, ("lengths",), 7, 3)
    program = torch.onnx.export(
        layer,
        (x,),
        kwargs=given,
        custom_translation_table=rnnorm.export.translations(),
        dynamo=True,
        verbose=False,
    )
    program.save(tmp_path / "layer.onnx")
    found = run(tmp_path / "layer.onnx", x, *given.values())
    torch.testing.assert_close(found, list(layer(x, **given)))


def test_a_file_that_gives_other_values_is_not_left_there(tmp_path, monkeypatch):
    layer = nn.Linear(3, 2).eval()
    monkeypatch.setitem(comparison._TOLERANCES, torch.float32, -1.0)
    with pytest.raises(RuntimeError, match="onnxruntime returns another"):
        rnnorm.export.onnx(layer, (torch.randn(4, 3),), tmp_path / "layer.onnx")
    assert list(tmp_path.iterdir()) == []


def wrong_by(difference, monkeypatch):
    """Lets onnxruntime return its values plus what a function of the inputs gives."""
    run = onnxruntime.InferenceSession.run

    def run_wrong(session, names, feed):
        return [put + difference(*feed.values()) for put in run(session, names, feed)]

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", run_wrong)


class Ones(nn.Module):
    def forward(self, x):
        return 0 * x + 1


def test_rounding_is_no_other_value(tmp_path, monkeypatch):
    wrong_by(lambda x: np.float32(1e-6), monkeypatch)
    rnnorm.export.onnx(Ones(), (torch.randn(4, 3),), tmp_path / "layer.onnx")


def test_a_thousandth_is_another_value(tmp_path, monkeypatch):
    wrong_by(lambda x: np.float32(1e-3), monkeypatch)
    with pytest.raises(RuntimeError, match="onnxruntime returns another"):
        rnnorm.export.onnx(Ones(), (torch.randn(4, 3),), tmp_path / "layer.onnx")


def test_a_file_is_compared_at_other_sizes_than_the_examples_too(tmp_path, monkeypatch):
    wrong_by(lambda x: np.float32(len(x) != 4), monkeypatch)
    with pytest.raises(RuntimeError, match=r"for inputs of \(5, 3\)"):
        rnnorm.export.onnx(nn.Linear(3, 2).eval(), (torch.randn(4, 3),), tmp_path / "layer.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["batch", None])
def test_autocast_changes_no_file(norm, dtype, tmp_path):
    layer = prepared(rnnorm.LSTM(3, 4, norm=norm), torch.float32)
    model, x = nn.Sequential(nn.Linear(3, 3), layer).eval(), torch.randn(4, 2, 3)
    with torch.autocast("cpu", dtype):
        rnnorm.export.onnx(model, (x,), tmp_path / "model.onnx")
        assert torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        torch.testing.assert_close(run(tmp_path / "model.onnx", x)[0], model(x)[0])


@pytest.mark.slow
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_in_training_is_exported_in_any_mode_of_gradients(mode, tmp_path):
    layer = prepared(rnnorm.LSTM(3, 4, norm="batch"), torch.float32).train()
    with mode():
        x = torch.randn(4, 2, 3)
        rnnorm.export.onnx(layer, (x,), tmp_path / "layer.onnx")
    assert layer.training
    with torch.no_grad():
        torch.testing.assert_close(run(tmp_path / "layer.onnx", x)[0], layer.eval()(x)[0])


@pytest.mark.slow
def test_a_parametrization_that_onnx_does_not_know_is_computed_before(tmp_path):
    # its Householder products are no operators of ONNX
    layer = prepared(rnnorm.LSTM(3, 4, norm="layer"), torch.float32)
    nn.utils.parametrizations.orthogonal(layer, "weight_hh_l0")
    x = torch.randn(4, 2, 3)
    rnnorm.export.onnx(layer, (x,), tmp_path / "layer.onnx")
    with torch.no_grad():
        torch.testing.assert_close(run(tmp_path / "layer.onnx", x)[0], layer(x)[0])


def test_an_autocast_to_bfloat16_within_the_model_is_an_error(tmp_path):
    class Within(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    with pytest.raises(RuntimeError, match="bfloat16, as within an autocast of the model's own"):
        rnnorm.export.onnx(Within(3, 4), (torch.randn(2, 3),), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_inputs_may_have_gradients(tmp_path):
    x = torch.randn(4, 3, requires_grad=True)
    rnnorm.export.onnx(nn.Linear(3, 2).eval(), (x,), tmp_path / "layer.onnx")
    assert x.grad is None
    assert x.requires_grad


def test_truths_and_infinities_are_compared_too(tmp_path):
    class Ends(nn.Module):
        def forward(self, x):
            return x > 0, x.masked_fill(x < 0, -torch.inf)

    rnnorm.export.onnx(Ends(), (torch.randn(4, 3),), tmp_path / "ends.onnx")


@pytest.mark.slow
def test_an_output_may_have_no_elements(tmp_path):
    # as the boundaries of a single layer
    model = rnnorm.HMLSTM(3, 4, 1, norm="layer").eval()
    rnnorm.export.onnx(model, (torch.randn(5, 3, 3),), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").exists()


def test_another_infinity_is_an_error(tmp_path, monkeypatch):
    class Endless(nn.Module):
        def forward(self, x):
            return x / 0.0

    run, path = onnxruntime.InferenceSession.run, tmp_path / "endless.onnx"
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "run", lambda *given: [-put for put in run(*given)]
    )
    with pytest.raises(RuntimeError, match="onnxruntime returns another"):
        rnnorm.export.onnx(Endless(), (torch.rand(4, 3) + 1,), path)


def test_an_example_that_is_no_tuple_of_tensors_is_an_error(tmp_path):
    layer, x, path = rnnorm.LSTM(3, 4).eval(), torch.randn(4, 2, 3), tmp_path / "layer.onnx"
    for example in (x, [x], {"input": x}):
        with pytest.raises(TypeError, match=f"must be a tuple .*, got a {type(example).__name__}"):
            rnnorm.export.onnx(layer, example, path)
    packed = nn.utils.rnn.pack_sequence([x[:, 0], x[:, 1]])
    jagged = torch.nested.as_nested_tensor([x[:, 0], x[:2, 1]], layout=torch.jagged)
    for ragged in (packed, jagged):
        with pytest.raises(TypeError, match="no PackedSequence and no nested tensor"):
            rnnorm.export.onnx(layer, (ragged,), path)
    with pytest.raises(FileNotFoundError, match="a folder that exists"):
        rnnorm.export.onnx(layer, (x,), tmp_path / "none" / "layer.onnx")


def test_a_full_disk_is_named_beside_the_file(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch.onnx.ONNXProgram, "save", full)
    layer, x, path = rnnorm.RNN(3, 4).eval(), torch.randn(4, 2, 3), tmp_path / "layer.onnx"
    with pytest.raises(OSError, match=r"No space left on device: '.*layer\.onnx'"):
        export.onnx(layer, (x,), path)
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_is_an_error(tmp_path):
    layer, x = rnnorm.LSTM(3, 4).bfloat16().eval(), torch.randn(4, 2, 3).bfloat16()
    with pytest.raises(TypeError, match="must not be bfloat16"):
        rnnorm.export.onnx(layer, (x,), tmp_path / "layer.onnx")


def test_what_a_model_takes_by_keywords_of_any_name_is_an_error(tmp_path):
    class Open(nn.Module):
        def forward(self, x, **others):
            return x

    with pytest.raises(TypeError, match=r"got \['lengths'\], which it takes by \*\*kwargs"):
        rnnorm.export.onnx(Open(), (torch.ones(2, 2),), tmp_path / "m", kwargs={"lengths": [2, 2]})


def test_a_size_that_the_model_bakes_in_is_an_error(tmp_path):
    class Baked(nn.Module):
        def forward(self, x):
            return x.sum(1) + torch.zeros(4)

    sizes = rnnorm.export.onnx(Baked(), (torch.randn(4, 3),), tmp_path / "layer.onnx")
    assert sizes == {"x": [4, sizes["x"][1]]}
    with pytest.raises(Exception, match="rows"):
        rnnorm.export.onnx(
            Baked(),
            (torch.randn(4, 3),),
            tmp_path / "other.onnx",
            dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
        )


@torch.no_grad()
def test_a_stream_without_a_step_warns(tmp_path):
    layer = prepared(rnnorm.GRU(3, 4, norm="batch"), torch.float32)
    example = torch.randn(3, 2, 3), torch.zeros(1, 2, 4)
    with pytest.warns(UserWarning, match="hx was given without step"):
        rnnorm.export.onnx(layer, example, tmp_path / "layer.onnx")
    assert (tmp_path / "layer.onnx").is_file()


class Wrapped(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, hx, step):
        return self.layer(x, hx, step=step)


@torch.no_grad()
def test_a_step_or_lengths_that_become_constants_warn(tmp_path):
    layer = prepared(rnnorm.GRU(3, 4, norm="batch"), torch.float32)
    example, path = (torch.randn(3, 2, 3), torch.zeros(1, 2, 4)), tmp_path / "layer.onnx"
    model = Wrapped(layer)
    with pytest.warns(UserWarning, match="step is an int, so it is 0 in every call of the file"):
        rnnorm.export.onnx(model, (*example, 0), path)
    # where all steps have one statistic, it is the same file
    layer = prepared(rnnorm.GRU(3, 4, norm=rnnorm.BatchNorm(population="shared")), torch.float32)
    rnnorm.export.onnx(layer, example, path, kwargs={"step": 0})
    with pytest.warns(UserWarning, match="lengths is a list, so these are the lengths in every"):
        rnnorm.export.onnx(layer, example, path, kwargs={"lengths": [3, 2]})
