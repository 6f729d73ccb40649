import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence

import rnnorm
from rnnorm.diagnostics import (
    first_input_influence,
    gradient_norms,
    gradient_norms_by_gamma,
    plot_gradient_norms,
)

T, B, I, H = 7, 5, 3, 4  # noqa: E741


def last_output(result):
    return result[0][-1].square().sum()


def every_output(result):
    return (result[0] * torch.arange(T).view(T, 1, 1)).square().sum()


def by_hand(h_0, step, loss):
    """Norms of the gradients of states that a loop written out keeps for itself."""
    states, h = [], h_0
    for t in range(T):
        h = step(h, t)
        h.retain_grad()
        states.append(h)
    loss((torch.stack(states), None)).backward()
    return torch.stack([h.grad.norm() for h in states])


@pytest.mark.parametrize("loss", [last_output, every_output])
def test_tanh_network_agrees_with_its_equation_differentiated_by_hand(loss):
    rnn, x = rnnorm.RNN(I, H, dtype=torch.float64), torch.randn(T, B, I, dtype=torch.float64)

    def step(h, t):
        bias = rnn.bias_ih_l0 + rnn.bias_hh_l0
        return torch.tanh(x[t] @ rnn.weight_ih_l0.T + h @ rnn.weight_hh_l0.T + bias)

    expected = by_hand(torch.zeros(B, H, dtype=torch.float64), step, loss)
    torch.testing.assert_close(gradient_norms(rnn, loss, x), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loss", [last_output, every_output])
def test_batch_normalised_lstm_agrees_with_a_loop_over_its_cell(loss, training):
    wide = {"dtype": torch.float64}
    lstm = rnnorm.LSTM(I, H, norm="batch", initial_noise=0.0, **wide)
    x = torch.randn(T, B, I, **wide)
    lstm(torch.randn(T, B, I, **wide))
    lstm.train(training)
    cell = rnnorm.LSTMCell(I, H, norm="batch", **wide).train(training)
    cell.load_state_dict({n.replace("_l0", ""): v for n, v in lstm.state_dict().items()})
    c = x.new_zeros(B, H)

    def step(h, t):
        nonlocal c
        h, c = cell(x[t], (h, c), t)
        return h

    expected = by_hand(x.new_zeros(B, H), step, loss)
    torch.testing.assert_close(gradient_norms(lstm, loss, x), expected)


def test_parametrised_weights_of_torchs_layer_are_its_weights():
    layer, x = nn.GRU(I, H), torch.randn(T, B, I)
    expected = gradient_norms(layer, last_output, x)
    found = gradient_norms(weight_norm(layer, "weight_hh_l0"), last_output, x)
    torch.testing.assert_close(found, expected)


def test_without_recurrent_weights_only_the_last_step_matters():
    rnn = nn.RNN(I, H)
    nn.init.zeros_(rnn.weight_hh_l0)
    norms = gradient_norms(rnn, last_output, torch.randn(T, B, I))
    assert (norms[:-1] == 0).all()
    assert norms[-1] > 0


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, rnnorm.LSTM, rnnorm.GRU])
def test_the_loss_is_that_of_the_model(make):
    layer, losses = make(I, H, num_layers=2, batch_first=True), []

    def loss(result):
        losses.append(result[0][:, -1].sum() + sum(s.sum() for s in result[1]))
        return losses[-1]

    x = torch.randn(B, T, I)
    assert gradient_norms(layer, loss, x).shape == (T,)
    torch.testing.assert_close(losses[0], loss(layer(x)))


@pytest.mark.parametrize(
    "layer", [rnnorm.LSTM(I, H, norm="batch", initial_noise=0.1), nn.LSTM(I, H)], ids=["ours", "nn"]
)
def test_nothing_of_the_model_changes(layer):
    x = torch.randn(T, B, I)
    layer(x)
    before, random = copy.deepcopy(layer.state_dict()), torch.get_rng_state()
    first = gradient_norms(layer, last_output, x)
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in layer.parameters())
    assert torch.equal(gradient_norms(layer, last_output, x), first)


def test_parameters_may_be_frozen():
    layer, x = rnnorm.GRU(I, H), torch.randn(T, B, I)
    expected = gradient_norms(layer, last_output, x)
    layer.requires_grad_(False)
    torch.testing.assert_close(gradient_norms(layer, last_output, x), expected)
    assert not any(p.requires_grad for p in layer.parameters())


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = rnnorm.RNN(I, H), rnnorm.RNN(H, H)

    def forward(self, x):
        return self.second(self.first(x)[0])


def test_what_the_loss_holds_keeps_its_gradients():
    head = nn.Linear(4, 2)
    gradient_norms(rnnorm.LSTM(3, 4), lambda out: head(out[0]).sum(), torch.randn(5, 2, 3))
    assert head.weight.grad is None


def test_a_layer_of_several_is_named():
    model, x = TwoLayers(), torch.randn(T, B, I)
    with pytest.raises(ValueError, match=r"one of \['first', 'second'\], got None"):
        gradient_norms(model, last_output, x)
    second = gradient_norms(model, last_output, x, layer="second")
    torch.testing.assert_close(
        second, gradient_norms(model.second, last_output, model.first(x)[0].detach())
    )
    assert not torch.equal(gradient_norms(model, last_output, x, layer="first"), second)


class Tied(nn.Module):
    """One layer under two names, of which forward takes the second, beside one that it leaves."""

    def __init__(self, layer):
        super().__init__()
        self.encoder = self.decoder = layer
        self.left = copy.deepcopy(layer)

    def forward(self, x):
        return self.decoder(x)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_layer_may_have_several_names(name):
    layer, x = nn.LSTM(3, 4), torch.randn(5, 2, 3)
    found = gradient_norms(Tied(layer), last_output, x, layer=name)
    assert torch.equal(found, gradient_norms(layer, last_output, x))
    with pytest.raises(ValueError, match="must call the layer, got none of layer='left'"):
        gradient_norms(Tied(layer), last_output, x, layer="left")


class Scaled(nn.LSTM):
    def forward(self, x, hx=None):
        return super().forward(3 * x, hx)


def hooked():
    layer = nn.GRU(3, 4)
    layer.register_forward_pre_hook(lambda module, given: (3 * given[0], *given[1:]))
    return layer


@pytest.mark.parametrize(
    ("make", "what"),
    [(lambda: Scaled(3, 4), "LSTM .* a forward of its own"), (hooked, "GRU .* forward hooks")],
)
@pytest.mark.parametrize(
    "measure", [lambda m, x: gradient_norms(m, last_output, x), first_input_influence]
)
def test_a_layer_that_does_more_than_torchs_is_refused(make, what, measure):
    with pytest.raises(ValueError, match=f"layer '' must compute what {what}"):
        measure(make(), torch.randn(5, 2, 3))


def test_a_bidirectional_layer_has_no_single_state_of_a_step():
    with pytest.raises(ValueError, match="bidirectional"):
        gradient_norms(rnnorm.RNN(I, H, bidirectional=True), last_output, torch.randn(T, B, I))


def last_states(result):
    return result[1].square().sum()


def test_rows_that_have_ended_have_no_part():
    rnn, x, lengths = rnnorm.RNN(I, H), torch.randn(T, B, I), [3, 7, 1, 7, 2]
    alone = [gradient_norms(rnn, last_states, x[:n, i : i + 1]) for i, n in enumerate(lengths)]
    squares = torch.stack([nn.functional.pad(norms**2, (0, T - len(norms))) for norms in alone])
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    torch.testing.assert_close(gradient_norms(rnn, last_states, packed), squares.sum(0).sqrt())


def test_lower_layers_are_no_steps_of_the_topmost():
    wide = {"norm": "batch", "initial_noise": 0.0, "dtype": torch.float64}
    stack = rnnorm.LSTM(I, H, num_layers=3, **wide)
    lower = rnnorm.LSTM(I, H, num_layers=2, **wide)
    upper = rnnorm.LSTM(H, H, **wide)
    weights = stack.state_dict()
    lower.load_state_dict({n: v for n, v in weights.items() if "l2" not in n})
    upper.load_state_dict({n.replace("l2", "l0"): v for n, v in weights.items() if "l2" in n})
    x = torch.randn(T, B, I, dtype=torch.float64)
    between = lower(x)[0].detach()
    torch.testing.assert_close(
        gradient_norms(stack, every_output, x), gradient_norms(upper, every_output, between)
    )


@pytest.mark.parametrize("parametrized", [False, True])
def test_each_gamma_is_that_of_a_model_built_with_it(parametrized):
    x, built = torch.randn(T, B, I), {}
    rnn = rnnorm.RNN(I, H, norm="batch", initial_noise=0.0)
    for gamma in (0.1, 1.0):
        other = rnnorm.RNN(I, H, norm=rnnorm.BatchNorm(gamma=gamma), initial_noise=0.0)
        weights = {n: v for n, v in rnn.state_dict().items() if "gamma" not in n}
        other.load_state_dict(weights, strict=False)
        built[gamma] = gradient_norms(other, last_output, x)
    if parametrized:
        parametrize.register_parametrization(rnn, "gamma_recurrent_l0", nn.Softplus(), unsafe=True)
    before = rnn.gamma_recurrent_l0.detach().clone()
    measured = gradient_norms_by_gamma(rnn, last_output, x, (0.1, 1.0))
    torch.testing.assert_close(measured, built)
    assert not torch.allclose(measured[0.1], measured[1.0])
    assert parametrize.is_parametrized(rnn) is parametrized
    torch.testing.assert_close(rnn.gamma_recurrent_l0, before)


def test_gamma_of_a_plain_network_cannot_vary():
    with pytest.raises(ValueError, match="no gamma"):
        gradient_norms_by_gamma(rnnorm.RNN(I, H), last_output, torch.randn(T, B, I))


def test_picture_names_gammas_and_models(axes):
    plot_gradient_norms(axes, {0.1: torch.tensor([1.0, 2.0]), "mine": torch.tensor([0.0, 1.0])})
    assert [line.get_label() for line in axes.lines] == ["γ = 0.1", "mine"]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "‖∂loss/∂h_t‖"


@torch.inference_mode()
def test_there_are_no_gradients_in_inference_mode():
    with pytest.raises(RuntimeError, match="must not be called in inference mode"):
        gradient_norms(nn.GRU(2, 3), last_output, torch.randn(T, 2, 2))


def test_a_state_that_zoneout_keeps_is_the_one_that_the_next_step_reads():
    zoneout = rnnorm.Zoneout(cell=0.0, hidden=0.5)
    lstm = rnnorm.LSTM(I, H, recurrent_dropout=zoneout, dtype=torch.float64).eval()
    norms = gradient_norms(lstm, lambda result: result[0].sum(), torch.randn(T, B, I).double())
    # nothing follows the last state, of which each number has a gradient of 1
    assert norms[-1].item() == pytest.approx((B * H) ** 0.5)


def test_a_stateful_layer_begins_anew_for_the_norms():
    stream = rnnorm.Stateful(rnnorm.GRU(I, H, norm="layer", dtype=torch.float64))
    x = torch.randn(T, B, I, dtype=torch.float64)
    wanted = gradient_norms(stream, torch.sum, x)
    stream(x[:, :2])
    torch.testing.assert_close(gradient_norms(stream, torch.sum, x), wanted)


class Decaying(rnnorm.Cell):
    """A cell whose output is read from two states, of which the first depends on no parameter."""

    states = ("trace", "h")

    def step(self, weights, x_term, state, normalise, t):
        """Compute a step."""
        trace, h = state
        trace, h = 0.5 * trace + 1, torch.tanh(x_term)
        return trace * h, (trace, h)


def test_the_first_state_of_a_users_cell_is_measured():
    layer, x = rnnorm.Recurrent(Decaying(), I, H), torch.randn(T, B, I)
    output, _ = layer(x)
    h_T = output[-1] / sum(0.5**t for t in range(T))
    expected = torch.stack([0.5 ** (T - 1 - t) * h_T.norm() for t in range(T)])
    norms = gradient_norms(layer, lambda result: result[0][-1].sum(), x)
    torch.testing.assert_close(norms, expected.detach())
