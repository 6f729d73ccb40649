"""How a minibatch is taken into populations, by the compiled library and by torch's operators."""

import pytest
import torch
from torch import tensor

import rnnorm
import rnnorm.kernels.cpu.update as in_library
import rnnorm.norm.update as updating
from rnnorm import BatchNorm
from rnnorm.kernels.cpu.library import UNAVAILABLE
from rnnorm.norm.population import Population
from rnnorm.norm.update import update


def unseen(populations, batch, count, step):
    """As on a GPU: ``update`` of what it finds not to be on the CPU."""
    stop = min(step + 3, 4)
    own = [population.rows_of(step, stop) for population in populations]
    means, variances = ([pair[k][: stop - step] for pair in batch] for k in range(2))
    count = count if isinstance(count, int) else count[: stop - step]
    updating._update_foreach(own, means, variances, count, 0.3)


def together(populations, batch, count, step, update=update):
    sites = [str(k) for k in range(len(populations))]
    given = (dict(zip(sites, each, strict=True)) for each in (populations, batch))
    update(*given, dict.fromkeys(sites, count), step)


@pytest.fixture
def by_library(monkeypatch):
    """The compiled library's update; it fails where that hands over to torch's operators."""
    if UNAVAILABLE:
        pytest.skip(UNAVAILABLE)
    monkeypatch.setattr(in_library, "by_operators", None)
    return in_library.update


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [7, torch.tensor([7, 5, 2]), torch.tensor([7, 1, 0])])
@pytest.mark.parametrize("momentum", [0.3, 0.0, 1.0, None])
def test_the_library_updates_as_operators_do(by_library, momentum, count, dtype):
    torch.manual_seed(0)
    norms = [BatchNorm(momentum=momentum, horizon=4), BatchNorm(momentum=0.7, horizon=2)]
    found, expected = (
        [
            Population(n, norm, shared=False, dtype=dtype)
            for n, norm in zip((3, 21), norms, strict=True)
        ]
        for _ in range(2)
    )
    for call in range(6):
        batch = [[torch.rand(3, n, dtype=dtype) for _ in range(2)] for n in (3, 21)]
        if call == 1:
            batch[0][1][1, 2] = torch.inf
        if call == 3:
            batch[0][0][0, 1] = torch.nan
        if call == 4:
            batch[1][1][0, 4] = torch.finfo(dtype).max
        for population, moments in zip(expected, batch, strict=True):
            updating._update_one(population, moments, count, call % 4)
        together(found, batch, count, call % 4, by_library)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_the_library_updates_a_row_that_all_steps_share(by_library):
    found, expected = (Population(2, BatchNorm(), shared=True) for _ in range(2))
    moments = torch.rand(1, 2), torch.rand(1, 2)
    by_library({"input": found}, {"input": moments}, {"input": 40}, 3)
    updating._update_one(expected, moments, 40, 3)
    torch.testing.assert_close(found.state_dict(), expected.state_dict())
    with pytest.raises(AttributeError):
        by_library({"input": found}, {"input": [m.repeat(2, 1) for m in moments]}, {"input": 4}, 0)


def test_a_buffer_that_the_library_updates_is_known_to_have_changed(by_library):
    layer = rnnorm.LSTM(2, 3, norm="batch")
    x = torch.randn(4, 6, 2)
    layer(x)
    population = layer.population_input_l0
    scale = torch.ones((), requires_grad=True)
    penalty = (scale * population.mean).sum()
    layer(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        penalty.backward()


RAGGED = torch.tensor([7, 5, 2])


@pytest.mark.parametrize("count", [7, RAGGED], ids=["dense", "ragged"])
@pytest.mark.parametrize("way", [unseen, together])
def test_sites_together_have_the_population_of_each_alone(way, count):
    torch.manual_seed(0)
    norm = BatchNorm(momentum=0.3, horizon=4)
    found, expected = ([Population(n, norm, shared=False) for n in (3, 5)] for _ in range(2))
    for call in range(6):
        step = call % 3
        batch = [(torch.randn(3, n), torch.rand(3, n)) for n in (3, 5)]
        if call == 1:
            batch[0][1][1, 2] = torch.inf
        if call in (0, 3):
            batch[1][0][0, 4] = batch[1][1][0, 4] = torch.nan
        for population, moments in zip(expected, batch, strict=True):
            updating._update_one(population, moments, count, step)
        way(found, batch, count, step)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_steps_without_a_statistic_leave_their_row_as_it_is():
    populations = [Population(2, BatchNorm(horizon=3), shared=False) for _ in range(2)]
    batch = [(torch.full((3, 2), 4.0), torch.ones(3, 2)) for _ in range(2)]
    for call in range(2):
        together(populations, batch, torch.tensor([3, 2, 0]), 0)
        for population in populations:
            assert population.rows.tolist() == [3 * (call + 1), 2 * (call + 1), 0]
            assert population.mean[:, 0].tolist() == [4.0, 4.0, 0.0]
            assert population.var[:, 0].tolist() == [1.5, 2.0, 1.0]


@pytest.mark.parametrize("step", [0, 2, 5, 9])
@pytest.mark.parametrize("spoilt", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"population": "shared"}])
def test_one_count_for_all_steps_is_a_count_for_each(options, spoilt, step):
    norm = BatchNorm(**{"horizon": 6} | options)
    torch.manual_seed(0)
    # few of the estimates are the first
    first = (torch.randn(4, 3), torch.rand(4, 3)), tensor([7, 5, 5, 0]), 1
    populations = [Population(3, norm, shared=norm.population == "shared") for _ in range(2)]
    mean, var = torch.randn(4, 3), torch.rand(4, 3)
    if spoilt is not None:
        var[1, 2] = spoilt
    for moments, rows, begin in (first, *[((mean, var), 7, step)] * 3):
        update({"input": populations[0]}, {"input": moments}, {"input": rows}, begin)
        each = torch.full((4,), rows) if isinstance(rows, int) else rows
        updating._update_one(populations[1], moments, each, begin)
    for (name, one), each in zip(
        populations[0].named_buffers(), populations[1].buffers(), strict=True
    ):
        assert torch.equal(one, each), name
