"""Jagged nested tensors in, jagged out: their rows are those of a padded batch with lengths."""

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import rnnorm
from own_cell import LiGRU
from rnnorm import tracing
from rnnorm.layers.hmlstm import Boundaries

LENGTHS = (3, 5, 1, 5)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def rows(lengths=LENGTHS, size=3):
    return [torch.randn(n, size, dtype=torch.float64, requires_grad=True) for n in lengths]


def nested(parts, **options):
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged, **options)


def padded(output):
    return pad_sequence(output.unbind())


def flat(hidden):
    return list(hidden) if isinstance(hidden, tuple) else [hidden]


def make(name, norm, **options):
    options = {"num_layers": 2, "norm": norm, "dtype": torch.float64, "initial_noise": 0, **options}
    if name == "Recurrent":
        return rnnorm.Recurrent(LiGRU(), 3, 4, **options)
    return getattr(rnnorm, name)(3, 4, **options)


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU", "Recurrent"])
@pytest.mark.parametrize("form", ["", "state", "batch first", "bidirectional", "evaluation"])
def test_a_jagged_batch_is_one_with_lengths(name, norm, form):
    layer = make(name, norm, bidirectional=form == "bidirectional", batch_first="first" in form)
    found = []
    parts, hx = rows(), None
    if form == "state":
        _, hx = layer(torch.randn(2, 4, 3, dtype=torch.float64))
        hx = tuple(s.detach() for s in hx) if isinstance(hx, tuple) else hx.detach()
    if form == "evaluation":
        layer(torch.randn(6, 4, 3, dtype=torch.float64))
        layer.eval()
    buffers = []
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    for jagged in (True, False):
        layer.load_state_dict(before, strict=False)
        if jagged:
            x = nested(parts)
            output, hidden = layer(x, hx)
            assert output.is_nested
            assert output.shape[:2] == x.shape[:2]
            output = padded(output)
        else:
            x, first = pad_sequence(parts, layer.batch_first), layer.batch_first
            output, hidden = layer(x, hx, lengths=LENGTHS)
            output = output.transpose(0, 1) if first else output
        results = [output, *flat(hidden)]
        loss = sum(r.square().sum() for r in results)
        found.append([*results, *torch.autograd.grad(loss, [*parts, *layer.parameters()])])
        buffers.append({name: buffer.clone() for name, buffer in layer.named_buffers()})
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*buffers)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_rows_of_a_jagged_batch_begin_anew_and_have_ages(norm):
    layer, parts = make("LSTM", norm), rows()
    layer(torch.randn(9, 4, 3, dtype=torch.float64))
    layer.eval()
    reset = [torch.rand(n) < 0.4 for n in LENGTHS]
    step = torch.tensor([0, 4, 2, 1])
    output, hidden = layer(nested(parts), step=step, reset=nested(reset))
    wanted, final = layer(
        pad_sequence(parts), step=step, reset=pad_sequence(reset), lengths=LENGTHS
    )
    torch.testing.assert_close(padded(output), wanted)
    torch.testing.assert_close(hidden, final)


def test_torchs_own_kernel_runs_where_ours_does_not():
    layer = rnnorm.LSTM(3, 4, proj_size=2, dtype=torch.float64)
    parts = rows()
    output, _ = layer(nested(parts))
    for found, part in zip(output.unbind(), parts, strict=True):
        torch.testing.assert_close(found, layer(part)[0])


def test_an_hmlstm_returns_jagged_boundaries():
    layer, parts = rnnorm.HMLSTM(3, 4, dtype=torch.float64).eval(), rows()
    output, _, boundaries = layer(nested(parts))
    wanted, _, expected = layer(pad_sequence(parts), lengths=LENGTHS)
    torch.testing.assert_close(padded(output), wanted)
    torch.testing.assert_close(padded(boundaries.z), expected.z)
    stateful = rnnorm.Stateful(layer)
    output, boundaries = stateful(nested(parts))
    torch.testing.assert_close(padded(output), wanted)
    torch.testing.assert_close(padded(boundaries.probability), expected.probability)
    # torch's split of a nested tensor crashes where a part has no gradient
    x, weights = nested(parts).detach().requires_grad_(), [*layer.parameters()]
    output, _, boundaries = layer(x)
    for found, one in ((output, wanted), (boundaries.probability, expected.probability)):
        grads = torch.autograd.grad(found.values().sum(), weights, retain_graph=True)
        want = torch.autograd.grad(one.sum(), weights, retain_graph=True)
        torch.testing.assert_close(grads, want)
    # a jagged batch has its rows first, whatever batch_first says
    boundaries = rnnorm.HMLSTM(3, 4, batch_first=True, dtype=torch.float64)(nested(parts))[2]
    assert type(boundaries) is Boundaries
    with pytest.raises(RuntimeError, match=r"cost must be \(T, B\)"):
        boundaries.reinforce(torch.zeros(5, len(parts)))


def test_an_output_is_padded_to_the_longest_row():
    layer, parts = make("LSTM", "layer"), rows()
    output, _, (h, _) = layer(nested(parts), return_states=True)
    for found in (output, h, rnnorm.HMLSTM(3, 4, dtype=torch.float64)(nested(parts))[0]):
        assert found.to_padded_tensor(0.0).shape[:2] == (len(parts), max(LENGTHS))


def test_a_stateful_layer_takes_jagged_pieces():
    layer = make("LSTM", "batch")
    layer(torch.randn(9, 4, 3, dtype=torch.float64))
    stateful, parts = rnnorm.Stateful(layer.eval()), rows((6, 6, 6))
    pieces = [stateful(nested([p[:2] for p in parts])), stateful(nested([p[2:] for p in parts]))]
    wanted = layer(torch.stack(parts, 1))[0]
    torch.testing.assert_close(torch.cat([padded(p) for p in pieces]), wanted)
    assert stateful.age.tolist() == [6, 6, 6]


@pytest.mark.skipif(tracing.RELEASE < (2, 13), reason="the graph breaks at every layer")
def test_torch_compile_breaks_its_graph_at_a_jagged_batch():
    torch._dynamo.reset()
    layer, x = make("GRU", "layer"), nested(rows())
    output, _ = torch.compile(layer, backend="eager")(x)
    torch.testing.assert_close(padded(output), padded(layer(x)[0]))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_other_nested_tensors_are_refused_in_words():
    layer, parts = make("LSTM", None), [p.detach() for p in rows()]
    strided = torch.nested.nested_tensor(parts, layout=torch.strided)
    with pytest.raises(RuntimeError, match=r"must have the layout torch.jagged, got torch.strided"):
        layer(strided)
    dense = torch.randn(4, 6, 3, dtype=torch.float64)
    start, count = torch.tensor([0, 1, 2, 0]), torch.tensor(LENGTHS)
    gaps = torch.nested.narrow(dense, 1, start, count, layout=torch.jagged)
    with pytest.raises(RuntimeError, match=r"no gaps .* give input.contiguous\(\)"):
        layer(gaps)
    layer(gaps.contiguous())
    with pytest.raises(RuntimeError, match=r"must be \(B, j, I\), the rows first"):
        layer(nested(parts).transpose(1, 2))
    with pytest.raises(RuntimeError, match=r"must be \(B, j, I\)"):
        layer(nested([p[:, 0] for p in parts]))
    with pytest.raises(RuntimeError, match=r"at least one frame, got rows of lengths \[3, 0\]"):
        layer(nested([parts[0], parts[0][:0]]))
    with pytest.raises(RuntimeError, match="Expected 3, got 2"):
        layer(nested([p[:, :2] for p in parts]))
    with pytest.raises(ValueError, match="lengths must be None with a nested tensor"):
        layer(nested(parts), lengths=LENGTHS)


def test_resets_of_another_form_are_refused():
    layer, x = make("LSTM", None), nested(rows())
    with pytest.raises(TypeError, match="reset must be a jagged nested tensor"):
        layer(x, reset=torch.zeros(4, 5, dtype=torch.bool))
    with pytest.raises(RuntimeError, match=r"of lengths \[3, 5, 1, 5\], got \[3, 5, 5, 1\]"):
        layer(x, reset=nested([torch.zeros(n, dtype=torch.bool) for n in (3, 5, 5, 1)]))
    with pytest.raises(TypeError, match="reset must be bool"):
        layer(x, reset=nested([torch.zeros(n) for n in LENGTHS]))
    with pytest.raises(RuntimeError, match="reset must have the shape"):
        layer(torch.zeros(5, 4, 3).double(), reset=nested([torch.zeros(n) > 0 for n in LENGTHS]))
