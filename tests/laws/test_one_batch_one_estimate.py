"""Law 5: after one minibatch the population is its own; after update_bn no order is left."""

from dataclasses import replace

import pytest
import torch
from cases import (
    Case,
    any_case,
    assert_all_close,
    assert_close,
    assert_estimates,
    assert_population,
    buffers,
    law,
    run,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import definition
import ranks
from rnnorm import LSTM, BatchNorm, LSTMCell, update_bn


def minibatches(case, count=3):
    """Minibatches of different lengths and numbers of rows."""
    cases = [
        replace(case, seed=case.seed + 7 * n, lengths=case.lengths + (2, 6, 1)[: (n + 1) % 3])
        for n in range(count)
    ]
    return [other.sequences() for other in cases]


@law(40)
@given(any_case(), st.sampled_from([0.0, 0.1, 1.0, None]))
def test_one_minibatch_is_the_population(case, momentum):
    case = replace(case, norm=replace(case.norm, momentum=momentum))
    module = case.module()
    want = definition.network(module, case.norm, case.sequences(), case.hx()).statistics
    run(module, case.sequences(), case.hx())
    once = [replace(case.norm, momentum=m) for m in (momentum, 1.0)]
    for norm in once:
        assert_population(module, [want], norm)


@law(60)
@given(any_case(), st.sampled_from([0.0, 0.1, 0.4, None]), st.integers(2, 5))
def test_several_minibatches_are_averaged_as_the_estimator_says(case, momentum, count):
    case = replace(case, norm=replace(case.norm, momentum=momentum))
    module = case.module()
    statistics = []
    for sequences in minibatches(case, count):
        statistics.append(definition.network(module, case.norm, sequences).statistics)
        run(module, sequences)
    assert_population(module, statistics, case.norm)


@law(25)
@given(any_case(norms="mixed"), st.integers(2, 4))
def test_each_site_of_a_mixed_norm_keeps_an_estimate_of_its_own(case, count):
    module = case.module()
    statistics = []
    for sequences in minibatches(case, count):
        statistics.append(definition.network(module, case.norm, sequences).statistics)
        run(module, sequences)
    assert_population(module, statistics, case.norm)


@law(15)
@given(any_case(norms="mixed", num_layers=1))
def test_update_bn_of_a_mixed_norm_averages_each_site(case):
    module, data = case.module(), minibatches(case)
    # else there is nothing to update
    assume(module.norm_takes_statistics())
    want = [definition.network(module, case.norm, sequences).statistics for sequences in data]
    update_bn([pack_sequence(each, enforce_sorted=False) for each in data], module)
    average = {
        site: replace(spec, momentum=None) if isinstance(spec, BatchNorm) else spec
        for site, spec in case.norm.items()
    }
    assert_population(module, want, average, updated=True)


def counted(module):
    """The populations, without rows that nothing has been counted in."""
    return {
        f"{name}.{buffer}": getattr(population, buffer)[population.rows > 0].clone()
        for name, population in module.named_children()
        for buffer in ("mean", "var", "rows", "num_batches_tracked")
    }


class Model(nn.Module):
    """A recurrent layer between others, one of them an ordinary batch norm."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.BatchNorm1d(width, dtype=torch.float64)

    def forward(self, sequences):
        _, state = self.layer(sequences)
        return self.head((state[0] if isinstance(state, tuple) else state)[0])


@law(30)
@given(any_case(given_state=False), st.permutations(range(3)))
def test_update_bn_does_not_depend_on_the_order(case, order):
    batches = [pack_sequence(s, enforce_sorted=False) for s in minibatches(case)]
    module, other = case.module(), case.module()
    run(other, minibatches(replace(case, seed=99))[2])  # what was there before is forgotten
    update_bn(batches, module)
    update_bn([batches[n] for n in order], other)
    assert_all_close(counted(other), counted(module))


@law(30)
@given(any_case(given_state=False))
def test_update_bn_is_the_row_weighted_average_over_the_loader(case):
    module = case.module()
    data = minibatches(case)
    run(module, data[0])  # forgotten
    update_bn([pack_sequence(s, enforce_sorted=False) for s in data], module.eval())
    module.train()
    want = [definition.network(module, case.norm, sequences).statistics for sequences in data]
    assert_population(module, want, replace(case.norm, momentum=None), updated=True)


@pytest.mark.parametrize("training", [True, False])
def test_update_bn_leaves_modes_parameters_and_gradients_alone(training):
    case = Case(norm=BatchNorm(), num_layers=2)
    layer = case.module()
    layer.dropout = 0.5
    model = Model(layer, case.hidden_size).train(training)
    model.head.eval()
    parameters = [p.clone() for p in model.parameters()]
    data = [pack_sequence(s, enforce_sorted=False) for s in minibatches(case)]
    update_bn(data, model)
    assert [m.training for m in (model, layer, model.head)] == [training, training, False]
    assert layer.dropout == 0.5
    assert all(p.grad is None for p in model.parameters())
    assert_all_close(list(model.parameters()), parameters, 0)
    assert model.head.momentum == 0.1
    assert all(p.training == training for p in layer.children())


def test_update_bn_turns_dropout_off():
    case = Case("GRU", BatchNorm(), num_layers=2, given_state=False)
    layer = case.module()
    data = minibatches(case)
    want = [definition.network(layer, case.norm, sequences).statistics for sequences in data]
    layer.dropout = 0.5
    update_bn([pack_sequence(s, enforce_sorted=False) for s in data], layer)
    assert_population(layer, want, replace(case.norm, momentum=None), updated=True)


def test_update_bn_leaves_a_subclass_its_own_dropout():
    class Dropped(LSTMCell):
        def __init__(self):
            super().__init__(3, 4, norm="batch")
            self.dropout = nn.Dropout(0.5)

        def forward(self, x):
            return super().forward(self.dropout(x))

    cell, x = Dropped(), torch.randn(9, 3)
    update_bn([x], cell)
    want = (x @ cell.weight_ih.T).mean(0)
    assert_close("mean", cell.population_input.mean[0], want, 1e-5)
    assert cell.dropout.training
    assert cell.dropout.p == 0.5


def test_update_bn_estimates_ordinary_batch_norm_as_well():
    case = Case("GRU", BatchNorm(), given_state=False)
    model = Model(case.module(), case.hidden_size)
    data = [pack_sequence(s, enforce_sorted=False) for s in minibatches(case)]
    states = [case.module()(batch)[1][0] for batch in data]
    update_bn(data, model)
    assert model.head.num_batches_tracked == len(data)
    assert_all_close([model.head.running_mean], [torch.stack([s.mean(0) for s in states]).mean(0)])


def failing(batches, error=OSError):
    yield from batches
    raise error("the disk has gone")


@pytest.mark.parametrize(
    ("loader", "error"), [(list, ValueError), (lambda: failing([]), OSError)], ids=["empty", "bad"]
)
def test_update_bn_on_a_loader_without_data_loses_nothing(loader, error):
    case = Case("GRU", BatchNorm(), num_layers=2)
    layer = case.module()
    run(layer, case.sequences())
    model = Model(layer, case.hidden_size).train()
    before = buffers(model)
    with pytest.raises(error):
        update_bn(loader(), model)
    assert all(module.training for module in model.modules())
    assert_all_close(buffers(model), before, 0)


def test_update_bn_that_is_interrupted_loses_nothing():
    layer = Case("GRU", BatchNorm()).module()
    run(layer, Case("GRU").sequences())
    before = buffers(layer)
    minibatch = torch.randn(5, 4, 3, dtype=torch.float64)
    with pytest.raises(KeyboardInterrupt):
        update_bn(failing([minibatch], KeyboardInterrupt), layer)
    assert_all_close(buffers(layer), before, 0)


def test_update_bn_takes_a_forward_and_the_first_element_of_a_batch():
    case = Case("GRU", BatchNorm(), given_state=False)
    data = [pack_sequence(s, enforce_sorted=False) for s in minibatches(case)]
    plain, first, called = case.module(), case.module(), case.module()
    update_bn(data, plain)
    update_bn([(batch, torch.zeros(3)) for batch in data], first)
    update_bn(
        [{"x": batch} for batch in data], called, forward=lambda model, batch: model(batch["x"])
    )
    assert_all_close(buffers(first), buffers(plain), 0)
    assert_all_close(buffers(called), buffers(plain), 0)


def test_update_bn_draws_the_initial_noise():
    case = Case("GRU", BatchNorm(), given_state=False)
    layer = case.module()
    layer.initial_noise = 0.3
    torch.manual_seed(3)
    update_bn([pack_sequence(case.sequences(), enforce_sorted=False)], layer)
    assert (layer.population_recurrent_l0.var[0] > 0).all()


def test_normalisation_is_biased_and_the_population_unbiased():
    norm = BatchNorm(input="frame", recurrent=None, cell=None, eps=0.25)
    case = Case("RNN_TANH", norm, lengths=(1, 1, 1))
    module, sequences = case.module(), case.sequences()
    outputs, _ = run(module, sequences)
    z = torch.cat(sequences) @ module.weight_ih_l0.T
    scaled = module.gamma_input_l0 * (z - z.mean(0)) / (z.var(0, unbiased=False) + 0.25).sqrt()
    want = torch.tanh(scaled + module.bias_ih_l0 + module.bias_hh_l0)
    assert_all_close([torch.cat(outputs)], [want])
    estimate = definition.Estimate(z.mean(0), z.var(0), 3, 1)
    assert_estimates("input", module.population_input_l0, {0: estimate})


def test_update_bn_names_forward_where_it_cannot_know_what_the_model_takes():
    x, lengths, y = torch.randn(6, 4, 3).double(), torch.tensor([6, 3, 2, 2]), torch.zeros(4)
    layer = Case("GRU", BatchNorm()).module()
    run(layer, Case("GRU").sequences())
    before = buffers(layer)
    with pytest.raises(ValueError, match=r"got 3 elements: .*forward="):
        update_bn([(x, lengths, y)], layer)
    with pytest.raises(ValueError, match=r"got 0 elements: .*forward="):
        update_bn([()], layer)
    assert_all_close(buffers(layer), before, 0)
    update_bn([(x, lengths, y)], layer, forward=lambda m, batch: m(batch[0], lengths=batch[1]))
    assert layer.population_input_l0.rows.tolist()[0] == 4


def test_an_input_that_cannot_be_moved_needs_forward():
    layer = Case("GRU", BatchNorm()).module()
    batch = {"x": torch.randn(5, 4, 3, dtype=torch.float64)}
    with pytest.raises(TypeError, match=r"got a dict: say with forward="):
        update_bn([batch], layer, "cpu")
    update_bn([batch], layer, "cpu", forward=lambda m, batch: m(batch["x"]))


@pytest.mark.parametrize(
    "layer",
    [LSTM(3, 4), LSTM(3, 4, norm="layer"), nn.BatchNorm1d(3, track_running_stats=False)],
    ids=["none", "layer", "no-running-statistics"],
)
def test_update_bn_of_a_model_without_batch_statistics_warns(layer):
    with pytest.warns(UserWarning, match="no batch norm") as warned:
        update_bn(failing([]), nn.Sequential(layer))
    assert warned[0].filename == __file__


def test_after_update_bn_an_earlier_step_serves_those_of_few_rows():
    # 8 of 12 rows go on in each of five minibatches, and 8 of those in one further
    norm = BatchNorm(input="frame", recurrent=None, cell=None)
    batches = [[3] * 8 + [2] * 4 for _ in range(5)]
    batches[0] = [4] * 8 + [2] * 4
    layer = Case("GRU", norm).module()
    data = [Case("GRU", norm, lengths=tuple(n), seed=k) for k, n in enumerate(batches)]
    update_bn([pack_sequence(case.sequences(), enforce_sorted=False) for case in data], layer)
    population = layer.population_input_l0
    assert population.rows.tolist() == [60, 60, 40, 0]
    mean, _ = population.at(torch.tensor([2, 3]))
    assert_close("mean", mean[1], mean[0], 0)


def average_on_a_rank(rank, world, folder):
    """One of two ranks: a third of the data, or two thirds, and the result."""
    ranks.join(rank, world, folder)
    case = Case("GRU", BatchNorm(horizon=9), given_state=False)
    data = [pack_sequence(s, enforce_sorted=False) for s in minibatches(case)]
    model = Model(case.module(), case.hidden_size)
    update_bn(data[:1] if rank == 0 else data[1:], nn.parallel.DistributedDataParallel(model))
    torch.save(buffers(model), folder / f"rank{rank}")
    ranks.leave()


@pytest.mark.slow
def test_update_bn_averages_over_ranks(tmp_path):
    case = Case("GRU", BatchNorm(horizon=9), given_state=False)
    alone = Model(case.module(), case.hidden_size)
    update_bn([pack_sequence(s, enforce_sorted=False) for s in minibatches(case)], alone)
    for code, output in ranks.finish(ranks.start(average_on_a_rank, 2, tmp_path)):
        assert code == 0, output
    for rank in range(2):
        assert_all_close(torch.load(tmp_path / f"rank{rank}"), buffers(alone), 1e-12)
