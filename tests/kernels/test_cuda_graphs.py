"""Which calls are captured, with a stand-in for CUDA graphs."""

import pytest
import torch
from tape import capture

from rnnorm.kernels import cuda_graphs
from rnnorm.kernels.call import UncoveredError
from rnnorm.kernels.cuda_graphs import REMEMBERED, SIGHTINGS, Graphs


class Counted:
    """Captures with a tape, and counts captures, replays and runs."""

    def __init__(self):
        self.captures = self.replays = self.runs = 0

    def capture(self, run):
        self.captures += 1
        replay, results = capture(run)

        def counted():
            self.replays += 1
            replay()

        return counted, results

    def product(self, x, sizes, weight, bias, power):
        self.runs += 1
        z = torch.empty(len(x), weight.size(1), dtype=x.dtype)
        torch.mm(x, weight, out=z)
        if bias is not None:
            z += bias
        return [z**power, z.new_zeros(0), z.sum(0) * sum(sizes.tolist())]


def draw(rows, seed=0, bias=True, dtype=torch.float64, sizes=(3, 3)):
    torch.manual_seed(seed)
    given = torch.randn(rows, 4, dtype=dtype), torch.tensor(sizes), torch.randn(4, 5, dtype=dtype)
    return *given, torch.randn(5, dtype=dtype) if bias else None, 2.0


@pytest.fixture
def counted():
    return Counted()


@pytest.fixture
def made(counted):
    return Graphs(counted.capture)


def same(found, expected):
    return all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_the_third_call_is_captured_and_the_next_ones_replayed(made, counted):
    expected = [Counted().product(*draw(6, seed)) for seed in range(6)]
    found = [made.run(counted.product, draw(6, seed)) for seed in range(6)]
    # of which a later replay takes nothing back
    assert all(map(same, found, expected))
    assert (counted.captures, counted.replays) == (1, 6 - SIGHTINGS)
    assert counted.runs == SIGHTINGS + 1


@pytest.mark.parametrize(
    "other",
    [
        draw(7),
        draw(6, bias=False),
        draw(6, dtype=torch.float32),
        draw(6, sizes=(3, 2)),
        (*draw(6)[:-1], 3.0),
    ],
)
def test_a_graph_serves_calls_of_its_own_kind_alone(made, counted, other):
    for _ in range(SIGHTINGS + 1):
        made.run(counted.product, draw(6))
    before = counted.replays
    assert same(made.run(counted.product, other), Counted().product(*other))
    assert (counted.captures, counted.replays) == (1, before)


def test_modes_of_torch_are_part_of_the_kind(made, counted, fresh_memory_is_nan):
    for _ in range(SIGHTINGS + 1):
        made.run(counted.product, draw(6))
    torch.use_deterministic_algorithms(False)
    made.run(counted.product, draw(6))
    assert counted.replays == 1


def test_shapes_that_seldom_come_again_are_not_captured(made, counted):
    for rows in [*range(1, 2 * REMEMBERED)] * SIGHTINGS:
        made.run(counted.product, draw(rows))
    assert counted.captures == 0


def test_capturing_ends_where_graphs_are_dropped_before_they_paid(made, counted):
    for first in range(0, 10 * REMEMBERED, REMEMBERED):
        for rows in range(first, first + REMEMBERED):
            for _ in range(SIGHTINGS):
                made.run(counted.product, draw(rows))
    # the first ones, until the first of them was dropped
    assert counted.captures == REMEMBERED
    found = made.run(counted.product, draw(3, seed=1))
    assert same(found, Counted().product(*draw(3, seed=1)))


def test_graphs_that_paid_are_replaced(made, counted):
    for rows in range(2 * REMEMBERED):
        for _ in range(SIGHTINGS + 4):
            made.run(counted.product, draw(rows))
    assert counted.captures == 2 * REMEMBERED


def test_a_capture_that_fails_is_said_and_not_tried_again(counted):
    def fails(run):
        counted.captures += 1
        run()
        raise RuntimeError("operation not permitted when stream is capturing")

    made = Graphs(fails)
    calls = [draw(6, seed) for seed in range(SIGHTINGS + 2)]
    found = [made.run(counted.product, given) for given in calls[: SIGHTINGS - 1]]
    with pytest.warns(RuntimeWarning, match=r"no more CUDA graphs.*not permitted"):
        found.append(made.run(counted.product, calls[SIGHTINGS - 1]))
    found += [made.run(counted.product, given) for given in calls[SIGHTINGS:]]
    assert all(same(f, Counted().product(*given)) for f, given in zip(found, calls, strict=True))
    assert counted.captures == 1


def test_there_are_none_on_the_cpu_and_none_where_they_are_unwanted(monkeypatch):
    assert cuda_graphs.current_graphs(torch.device("cpu")) is None
    monkeypatch.setenv("RNNORM_CUDA_GRAPHS", "0")
    assert cuda_graphs.current_graphs(torch.device("cuda", 0)) is None


def test_a_refused_call_is_no_capture_that_failed(made, counted):
    def refuses(x):
        raise UncoveredError("200 rows")

    for _ in range(SIGHTINGS + 1):
        with pytest.raises(UncoveredError):
            made.run(refuses, draw(6)[:1])
    for seed in range(SIGHTINGS):
        made.run(counted.product, draw(6, seed))
    assert counted.captures == 1


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("then", [torch.inference_mode, torch.no_grad])
def test_a_graph_serves_every_mode_without_gradients(made, counted, first, then):
    calls = [draw(6, seed) for seed in range(SIGHTINGS + 1)]
    for k, given in enumerate(calls):
        with first() if k < SIGHTINGS else then():
            found = made.run(counted.product, given)
        assert same(found, Counted().product(*given))
    assert counted.captures == 1
