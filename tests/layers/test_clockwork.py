"""ClockworkRNN: what moves when, and what is computed."""

import warnings

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import rnnorm
from rnnorm import BatchNorm


def draw(periods=(1, 2, 3), hidden_size=6, **options):
    torch.manual_seed(0)
    return rnnorm.ClockworkRNN(
        3, hidden_size, periods, initial_noise=0.0, dtype=torch.float64, **options
    )


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(7, 5, 3, dtype=torch.float64)


@pytest.mark.parametrize("norm", [None, "batch", "layer", "joint"])
def test_a_module_moves_where_its_period_divides_the_step(x, norm):
    output, _ = draw(norm=norm)(x)
    moved = [
        [not torch.equal(output[t, :, u], output[t - 1, :, u]) for u in (0, 2, 4)]
        for t in range(1, 7)
    ]
    assert moved == [[t % period == 0 for period in (1, 2, 3)] for t in range(1, 7)]


def test_a_module_sees_no_faster_one(x):
    layer = draw()
    output, _ = layer(x, x.new_ones(1, 5, 6))
    output.sum().backward()
    grad = layer.weight_hh_l0.grad
    assert not grad[2:4, :2].any()
    assert not grad[4:, :4].any()
    assert all((grad[2 * k : 2 * k + 2, 2 * k :] != 0).all() for k in range(3))


def test_one_period_of_1_is_an_rnn(x):
    layer = draw((1,), norm="layer")
    rnn = rnnorm.RNN(3, 6, norm="layer", dtype=torch.float64)
    state = {name.replace("_period1", ""): value for name, value in layer.state_dict().items()}
    rnn.load_state_dict(state)
    torch.testing.assert_close(layer(x), rnn(x))


def products(layer, x):
    with rnnorm.use_backend("reference"), FlopCounterMode(display=False) as counter:
        layer(x)
    return counter.get_total_flops()


def test_what_does_not_move_is_not_computed():
    x = torch.randn(16, 5, 3)
    layer, rnn = rnnorm.ClockworkRNN(3, 64, (1, 2, 4, 8)), rnnorm.RNN(3, 64)
    # of 16 steps the modules move 16, 8, 4 and 2 times, with 4, 3, 2 and 1 quarters of h and x
    moves = (
        2 * 5 * 16 * sum(n * (q * 16 + 3) for n, q in zip((16, 8, 4, 2), (4, 3, 2, 1), strict=True))
    )
    assert products(layer, x) == moves
    assert moves < 0.45 * products(rnn, x)


def test_a_module_keeps_statistics_of_the_steps_at_which_it_moves(x):
    layer = draw(norm=BatchNorm(min_rows=2))
    layer(x)
    for period in (1, 2, 3):
        for site in ("input", "recurrent"):
            population = layer.get_submodule(f"population_{site}_period{period}_l0")
            counts = [5 if t % period == 0 else 0 for t in range(7)]
            assert population.rows.tolist() == counts
    layer(x[:1], x.new_ones(1, 5, 6), step=7)
    # no module of period 2 or 3 has moved
    assert layer.population_input_period1_l0.rows.tolist() == [5] * 8
    assert layer.population_input_period3_l0.rows.tolist() == [5, 0, 0, 5, 0, 0, 5, 0]
    assert layer.population_input_period3_l0.mean.isfinite().all()


def test_shared_statistics_are_those_of_the_moves(x):
    layer = draw(norm=BatchNorm(population="shared", recurrent=None))
    layer(x)
    terms = x[::3] @ layer.weight_ih_l0[4:].T
    population = layer.population_input_period3_l0
    torch.testing.assert_close(population.mean[0], terms.mean((0, 1)).detach())
    assert population.rows.tolist() == [15]


def test_a_step_sets_the_clock(x):
    layer = draw(norm="batch")
    layer(x)
    layer.eval()
    whole, _ = layer(x)
    _, h = layer(x[:3])
    rest, _ = layer(x[3:], h, step=3)
    torch.testing.assert_close(rest, whole[3:])
    aged, _ = layer(x[3:], h, step=torch.full((5,), 3))
    torch.testing.assert_close(aged, rest)


def test_a_module_that_first_moves_where_few_rows_are_left_takes_the_populations_statistics(x):
    layer, ragged = draw((1, 3), norm=BatchNorm(min_rows=4)), {"lengths": [3, 3, 2, 2, 2]}
    with pytest.raises(ValueError, match=r"at least 4 active rows .* got 2 in step 2 of the call"):
        layer(x[:3], step=1, **ragged)
    layer(x)
    means = layer.population_input_period3_l0.mean.clone()
    output, _ = layer(x[:3], step=1, **ragged)
    assert output.isfinite().all()
    torch.testing.assert_close(layer.population_input_period3_l0.mean, means)


@pytest.mark.parametrize("periods", [(), (0, 1), (2, 1), (1, 1)])
def test_periods_ascend(periods):
    with pytest.raises(ValueError, match="periods must ascend from at least 1, got"):
        draw(periods)


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="hidden_size must be a multiple of the 3 periods, got 7"):
        draw(hidden_size=7)
    with pytest.raises(TypeError, match=r"periods must be ints, got 1\.5"):
        draw((1, 1.5))
    with pytest.raises(TypeError, match="periods must be several ints, got 4"):
        rnnorm.ClockworkRNN(3, 8, 4)
    with pytest.raises(ValueError, match=r"norm.input must be 'frame' or None for ClockworkRNN"):
        draw(norm="bn-e*")
    with pytest.raises(ValueError, match=r"norm.carry must be None for ClockworkRNN"):
        draw(norm="carry")


def test_it_is_shown_with_its_periods():
    assert repr(draw(num_layers=2)) == (
        "ClockworkRNN(ClockworkRNN(periods=(1, 2, 3)), 3, 6, num_layers=2)"
    )


def test_a_window_in_which_a_module_never_moves_does_not_warn():
    clockwork = rnnorm.ClockworkRNN(3, 6, (1, 4), norm="layer")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clockwork(torch.randn(3, 5, 3), torch.zeros(1, 5, 6), step=1)


def test_steps_of_rows_may_lie_on_another_device():
    clockwork = rnnorm.ClockworkRNN(3, 6, (1, 2, 3), norm="batch", device="meta").eval()
    x, h = (torch.zeros(n, 5, size, device="meta") for n, size in ((7, 3), (1, 6)))
    output, _ = clockwork(x, h, step=torch.zeros(5, dtype=torch.int64))
    assert output.shape == (7, 5, 6)
