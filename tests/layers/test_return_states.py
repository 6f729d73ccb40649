"""return_states: the states after each frame are the final states of the frames up to there."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import rnnorm
from rnnorm.kernels import dispatch


class Leaky(rnnorm.Cell):
    """Two states, neither of which is the output."""

    gates = (1,)
    states = ("h", "m")

    def step(self, weights, x_term, state, normalise, t):
        h, m = state
        h = torch.tanh(self.preactivation(weights, x_term, h, normalise))
        m = torch.lerp(m, h, 0.3)
        return h + m, (h, m)


LAYERS = {
    "RNN": lambda **options: rnnorm.RNN(3, 4, 2, **options),
    "LSTM": lambda **options: rnnorm.LSTM(3, 4, 2, **options),
    "LSTM-proj": lambda **options: rnnorm.LSTM(3, 4, 2, proj_size=2, **options),
    "GRU": lambda **options: rnnorm.GRU(3, 4, 2, **options),
    "Recurrent": lambda **options: rnnorm.Recurrent(Leaky(), 3, 4, 2, **options),
}
LENGTHS = (3, 5, 2)


def make(name, norm=None, **options):
    torch.manual_seed(0)
    options = {"dtype": torch.float64, "initial_noise": 0.0, **options}
    return LAYERS[name](norm=norm, **options)


def frames(steps=5, rows=3, **options):
    torch.manual_seed(1)
    return torch.randn(steps, rows, 3, dtype=torch.float64, **options)


def parts(states):
    return states if type(states) is tuple else (states,)


def expected(layer, x, **options):
    """The final states of each beginning of ``x``, ``(T, B, D * num_layers, ·)``."""
    each = [parts(layer(x[: t + 1], **options)[1]) for t in range(len(x))]
    return [torch.stack([s.transpose(0, 1) for s in every]) for every in zip(*each, strict=True)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", LAYERS)
def test_states_are_the_final_states_of_each_beginning(name, norm, training):
    layer, x = make(name, norm), frames()
    layer(frames(7))
    layer.train(training)
    wanted = expected(layer, x)
    output, final = layer(x)
    found, last, states = layer(x, return_states=True)
    torch.testing.assert_close(found, output)
    torch.testing.assert_close(last, final)
    assert isinstance(states, tuple) == isinstance(final, tuple)
    torch.testing.assert_close(list(parts(states)), wanted)
    for s, f in zip(parts(states), parts(last), strict=True):
        assert torch.equal(s[-1].transpose(0, 1), f)
    if name != "Recurrent":
        assert torch.equal(parts(states)[0][:, :, -1], found)


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", LAYERS)
def test_states_are_differentiable(name, norm):
    layer, found = make(name, norm), []
    x = frames(requires_grad=True)
    weights = [torch.randn_like(s) for s in parts(layer(x, return_states=True)[2])]
    for states in (parts(layer(x, return_states=True)[2]), expected(layer, x)):
        loss = sum((w * s.square()).sum() for w, s in zip(weights, states, strict=True))
        found.append(torch.autograd.grad(loss, [x, *layer.parameters()], allow_unused=True))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("form", ["batch first", "unbatched", "lengths", "packed", "jagged"])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_states_have_the_form_of_the_output(name, form):
    first = form == "batch first"
    layer, x = make(name, "layer", batch_first=first), frames()
    plain = make(name, "layer")
    if form == "batch first":
        states = [s.transpose(0, 1) for s in parts(layer(x.transpose(0, 1), return_states=True)[2])]
        wanted = expected(plain, x)
    elif form == "unbatched":
        states = [s.unsqueeze(1) for s in parts(layer(x[:, 0], return_states=True)[2])]
        wanted = expected(plain, x[:, :1])
    else:
        wanted = expected(plain, x)
        for s in wanted:
            for row, n in enumerate(LENGTHS):
                s[n:, row] = 0
        if form == "lengths":
            padded = torch.cat([x, x[:2]])
            every = parts(layer(padded, lengths=LENGTHS, return_states=True)[2])
            assert not any(s[5:].any() for s in every)
            states = [s[:5] for s in every]
        elif form == "packed":
            packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
            output, _, every = layer(packed, return_states=True)
            assert all(
                torch.equal(s.unsorted_indices, output.unsorted_indices) for s in parts(every)
            )
            states = [pad_packed_sequence(s)[0] for s in parts(every)]
        else:
            rows = [x[:n, row] for row, n in enumerate(LENGTHS)]
            nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
            output, _, every = layer(nested, return_states=True)
            assert isinstance(every, tuple) == (name == "LSTM")
            assert all(s.shape[:2] == output.shape[:2] for s in parts(every))
            states = [torch.nn.utils.rnn.pad_sequence(s.unbind()) for s in parts(every)]
    torch.testing.assert_close(list(states), wanted)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_those_of_a_backward_direction_stand_at_the_frame_read_last(lengths):
    layer, x = make("LSTM", "layer", bidirectional=True), frames()
    output, (h, c), (hs, cs) = layer(x, lengths=lengths, return_states=True)
    assert hs.shape == cs.shape == (5, 3, 4, 4)
    torch.testing.assert_close(hs[:, :, 2:].flatten(2), output)
    torch.testing.assert_close(hs[0, :, 1::2].transpose(0, 1), h[1::2])
    torch.testing.assert_close(cs[0, :, 1::2].transpose(0, 1), c[1::2])
    for row, n in enumerate(lengths or (5, 5, 5)):
        torch.testing.assert_close(cs[n - 1, row, ::2], c[::2, row])


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_call_goes_on_from_any_of_them(name, norm):
    layer, x = make(name, norm), frames(9)
    layer(x)
    layer.eval()
    output, final, states = layer(x, return_states=True)
    hx = tuple(s[3].transpose(0, 1).contiguous() for s in parts(states))
    rest, last = layer(x[4:], hx if len(hx) > 1 else hx[0], step=4)
    torch.testing.assert_close(rest, output[4:])
    torch.testing.assert_close(last, final)


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", LAYERS)
def test_states_with_resets(name, norm):
    layer, x = make(name, norm, bidirectional=norm is None), frames(8)
    layer(x)
    layer.eval()
    reset = torch.zeros(8, 3, dtype=torch.bool)
    reset[2, 0] = reset[5, 0] = reset[0, 1] = reset[7, 2] = True
    lengths = torch.tensor([7, 8, 8])
    output, _, states = layer(x, reset=reset, lengths=lengths, return_states=True)
    torch.testing.assert_close(output, layer(x, reset=reset, lengths=lengths)[0])
    for row, start, stop in ((0, 0, 2), (0, 2, 5), (0, 5, 7), (1, 0, 8), (2, 0, 7), (2, 7, 8)):
        _, _, alone = layer(x[start:stop, row : row + 1], return_states=True)
        for s, a in zip(parts(states), parts(alone), strict=True):
            torch.testing.assert_close(s[start:stop, row], a[:, 0])
    assert not any(s[7, 0].any() for s in parts(states))


def test_states_under_zoneout_are_those_after_it():
    layer, x = (
        make("LSTM", "layer", recurrent_dropout=rnnorm.Zoneout(hidden=0.3, cell=0.3)),
        frames(),
    )
    torch.manual_seed(2)
    output, (h, c), (hs, cs) = layer(x, return_states=True)
    torch.manual_seed(2)
    torch.testing.assert_close((output, (h, c)), layer(x))
    torch.testing.assert_close(hs[:, :, 1], output)
    torch.testing.assert_close(cs[-1].transpose(0, 1), c)


def test_states_under_autocast_have_the_dtypes_of_final_states():
    layer, x = make("LSTM", "layer", dtype=torch.float32), frames().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, final, states = layer(x, return_states=True)
    assert [s.dtype for s in states] == [f.dtype for f in final]
    for s, f in zip(states, final, strict=True):
        torch.testing.assert_close(s[-1].transpose(0, 1), f)


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_a_kernel_runs_that_returns_them(name, norm):
    layer, x = make(name, norm), frames()
    before = dispatch.calls.copy()
    layer(x, return_states=True)
    (ran,) = dispatch.calls - before
    fused = name == "GRU" and not rnnorm.backends()["cpu"]
    assert ran == "cpu" if fused else ran in ("cpu", "reference")
    if norm is None:
        with rnnorm.use_backend("aten"), pytest.raises(RuntimeError, match="last states alone"):
            layer(x, return_states=True)


def test_a_fused_kernel_gives_the_states_of_the_reference():
    if rnnorm.backends()["cpu"]:
        pytest.skip(rnnorm.backends()["cpu"])
    layer, x = make("GRU", "batch", bidirectional=True), frames(requires_grad=True)
    found = []
    for kernel in ("cpu", "reference"):
        with rnnorm.use_backend(kernel):
            _, _, states = layer(x, lengths=LENGTHS, return_states=True)
        gradients = torch.autograd.grad(states.pow(3).sum(), [x, *layer.parameters()])
        found.append([states, *gradients])
    torch.testing.assert_close(*found)


def test_states_of_an_exported_program():
    if rnnorm.backends()["scan"]:
        pytest.skip(rnnorm.backends()["scan"])

    class States(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x, lengths):
            return self.layer(x, lengths=lengths, return_states=True)

    model, x = States(rnnorm.LSTM(3, 4, dtype=torch.float64, peephole="output")), frames()
    lengths, steps = torch.tensor(LENGTHS), {0: torch.export.Dim("T", min=2)}
    with torch.no_grad():
        program = torch.export.export(model, (x, lengths), dynamic_shapes=(steps, None)).module()
        given = frames(9), torch.tensor([9, 2, 4])
        torch.testing.assert_close(program(*given), model(*given))
