"""The population: the estimator in cases small enough for a pencil, and when its buffers grow."""

import pytest
import torch
from torch import tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import definition
import rnnorm
from populations import feed, layer, trained, values
from rnnorm.norm.population import BUFFERS, Population


def test_the_first_estimate_is_the_first_minibatch():
    population = feed(layer(), [1.0, 10.0], [2.0, 20.0], [6.0, 60.0])
    assert values(population.mean) == [3.0, 30.0]
    assert values(population.var) == pytest.approx([7.0, 700.0])  # (4 + 1 + 9) / 2
    assert population.rows.tolist() == [3, 3]
    assert population.num_batches_tracked.tolist() == [1, 1]


def test_buffers_stay_alike_where_memory_runs_out_as_they_grow(monkeypatch):
    population = feed(layer(), [1.0, 10.0], [2.0, 20.0])
    cat, joined = torch.cat, []

    def runs_out(tensors):
        if joined:
            raise torch.OutOfMemoryError
        joined.append(1)
        return cat(tensors)

    monkeypatch.setattr(torch, "cat", runs_out)
    with pytest.raises(torch.OutOfMemoryError):
        population.resize(9)
    assert {len(buffer) for buffer in population.buffers()} == {2}


def test_the_weight_of_a_minibatch_is_momentum_or_one_nth():
    module = layer(momentum=0.4)
    means = [
        values(feed(module, [centre - 1], [centre + 1]).mean)[0]
        for centre in (0.0, 10.0, 20.0, 30.0)
    ]
    # weights 1, 1/2, 2/5, 2/5: then momentum
    assert means == pytest.approx([0.0, 5.0, 0.6 * 5 + 8, 0.6 * 11 + 12])


def test_a_momentum_of_zero_is_the_plain_mean_of_the_minibatches():
    module = layer(momentum=0.0)
    for centre in (0.0, 10.0, 50.0):
        population = feed(module, [centre - 1], [centre + 1])
    assert values(population.mean) == pytest.approx([20.0])


def test_a_cumulative_average_weighs_by_rows():
    module = layer(momentum=None)
    feed(module, [1.0], [3.0])  # m 2, mean 2, biased variance 1
    population = feed(module, [4.0], [5.0], [6.0], [5.0])  # m 4, mean 5, biased variance 1/2
    assert values(population.mean) == pytest.approx([(2 * 2 + 4 * 5) / 6])
    assert values(population.var) == pytest.approx([(2 * 1 + 4 * 0.5) / (1 + 3)])
    assert population.rows.tolist() == [6]
    assert population.num_batches_tracked.tolist() == [2]


def test_each_step_counts_the_minibatches_that_have_reached_it():
    module = layer(momentum=0.1)
    feed(module, [1.0], [3.0])
    population = feed(module, [2.0, 5.0], [4.0, 7.0])
    assert values(population.mean) == pytest.approx([(2 + 3) / 2, 6.0])
    assert population.num_batches_tracked.tolist() == [2, 1]


def test_a_step_of_few_rows_is_not_counted():
    population = feed(layer(), [1.0, 4.0], [3.0])
    assert population.rows.tolist()[1:] in ([], [0])
    population = feed(layer(min_rows=3, horizon=2), [1.0, 4.0], [3.0, 5.0], [5.0])
    assert population.rows.tolist() == [3, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_statistic_that_is_not_finite_is_not_taken_in(bad):
    module = layer()
    feed(module, [1.0, 5.0], [3.0, 7.0])
    # 1e30 is finite, and its square is not
    population = feed(module, [2.0, bad], [4.0, 7.0])
    assert values(population.mean) == pytest.approx([2.5, 6.0])
    assert values(population.var) == pytest.approx([2.0, 2.0])
    assert population.rows.tolist() == [4, 2]
    assert population.num_batches_tracked.tolist() == [2, 1]


@pytest.mark.parametrize("options", [{"population": "shared"}, {"momentum": None}])
def test_nor_is_it_in_a_shared_population_or_the_first_minibatch(options):
    module = layer(**options)
    population = feed(module, [float("nan"), 5.0], [3.0, 7.0])
    assert population.num_batches_tracked.tolist() == ([1] if population.shared else [0, 1])
    assert values(population.mean)[-1] == pytest.approx(6.0)
    assert all(buffer.isfinite().all() for buffer in population.buffers())


def test_reset_running_stats_forgets_every_estimate():
    cell = rnnorm.LSTMCell(2, 3, norm="batch")
    for module, x in ((trained(), torch.randn(3, 4, 2)), (cell, torch.randn(4, 2))):
        module(x)
        module.reset_running_stats()
        for population in module.children():
            assert (population.mean == 0).all()
            assert (population.var == 1).all()
            assert not population.rows.any()
            assert not population.num_batches_tracked.any()
        with pytest.warns(UserWarning, match="before any statistic"):
            module.eval()(x)


def test_reset_running_stats_without_batch_norm_does_nothing():
    rnnorm.GRU(2, 3, norm="layer").reset_running_stats()


def test_a_shared_population_is_the_row_weighted_mean_of_the_steps():
    population = feed(layer(population="shared"), [0.0, 10.0], [2.0, 16.0], [4.0])
    assert values(population.mean) == pytest.approx([(3 * 2 + 2 * 13) / 5])
    assert values(population.var) == pytest.approx([(3 * 4 + 2 * 18) / 5])
    assert population.rows.tolist() == [5]
    assert population.num_batches_tracked.tolist() == [1]


def test_the_sequence_scope_counts_frames():
    population = feed(layer(input="sequence"), [0.0, 10.0], [2.0, 16.0], [2.0])
    assert values(population.mean) == pytest.approx([6.0])
    assert values(population.var) == pytest.approx([(36 + 16 + 16 + 100 + 16) / 4])
    assert population.rows.tolist() == [5]


@pytest.mark.parametrize("population", ["per_step", "shared"])
def test_the_definition_agrees_with_the_pencil(population):
    shared = population == "shared"
    column = [definition.Statistic(0, 3, tensor([2.0]), tensor([8 / 3]))]
    column += [definition.Statistic(1, 2, tensor([13.0]), tensor([9.0]))]
    found = definition.population([column], 0.1, shared=shared)
    if shared:
        assert found[0].mean.item() == pytest.approx(32 / 5)
        assert found[0].var.item() == pytest.approx(48 / 5)
    else:
        assert [found[t].var.item() for t in (0, 1)] == pytest.approx([4.0, 18.0])


def test_what_fills_modules_that_were_made_without_memory_finds_a_way_to():
    module = rnnorm.LSTM(2, 3, norm="batch", device="meta")
    for part in module.modules():
        part.to_empty(device="cpu", recurse=False)
        part.reset_parameters()
    for population in module.children():
        assert (population.mean == 0).all()
        assert (population.var == 1).all()
        assert not population.num_batches_tracked.any()


def test_a_population_holds_no_graph():
    for population in trained().children():
        assert all(not b.requires_grad and b.grad_fn is None for b in population.buffers())


def test_no_buffer_has_fewer_rows_than_the_population_says_while_it_grows():
    seen = []

    class Watched(Population):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name in BUFFERS:
                seen.append(len(self))
                assert all(len(self) <= len(getattr(self, each)) for each in BUFFERS)

    Watched(3, rnnorm.BatchNorm(), shared=False).grow(5)
    assert seen == [1, 1, 1, 5]


def test_the_population_grows_under_inference_and_no_grad():
    module = trained()
    with torch.no_grad():
        module(torch.randn(7, 4, 2))
    assert module.population_cell_l0.rows.tolist() == [8] * 5 + [4] * 2


@pytest.fixture
def processes():
    distributed = torch.distributed

    def start(count):
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)

    yield start
    distributed.destroy_process_group()


def test_training_in_several_processes_asks_for_a_horizon(processes):
    processes(2)
    with pytest.raises(RuntimeError, match="horizon"):
        trained()
    for options in ({"horizon": 5}, {"population": "shared"}):
        trained(**options)


def test_buffers_that_are_long_enough_need_no_horizon_in_several_processes(processes):
    module = trained()
    processes(2)
    module(torch.randn(len(module.population_input_l0), 3, 2))
    with pytest.raises(RuntimeError, match="horizon"):
        module(torch.randn(1 + len(module.population_input_l0), 3, 2))


def test_buffers_grow_in_the_only_process(processes):
    processes(1)
    assert len(trained().population_input_l0) > 1


@pytest.mark.parametrize("options", [{"input": "sequence"}, {"population": "shared"}])
def test_autocast_leaves_shared_statistics_in_float32(options):
    columns = [1.0, 1000.5], [2.0, 2001.0], [6.0, 3000.0]
    expected = feed(layer(**options), *columns)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = feed(layer(**options), *columns)
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(found.mean, expected.mean, rtol=0.01, atol=0)
    torch.testing.assert_close(found.var, expected.var, rtol=0.01, atol=0)


def test_buffers_do_not_grow_in_a_replica_that_is_thrown_away():
    population = Population(3, rnnorm.BatchNorm(), shared=False)
    # what torch.nn.DataParallel calls its copies
    population._is_replica = True
    population.grow(1)
    with pytest.raises(RuntimeError, match=r"grow to 2 under torch.nn.DataParallel"):
        population.grow(2)
