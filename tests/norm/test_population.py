"""The population: the estimator in cases small enough for a pencil, dtypes, checkpoints."""

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch import tensor
from torch.nn.utils.rnn import pack_sequence
from torch.testing._internal.distributed.fake_pg import FakeStore

import definition
import rnnorm
import rnnorm.kernels.cpu.update as in_library
import rnnorm.norm.update as updating
from rnnorm import BatchNorm
from rnnorm.kernels.cpu.library import UNAVAILABLE
from rnnorm.norm.population import Population
from rnnorm.norm.update import update

INPUT_ONLY = {"recurrent": None, "cell": None}


def layer(**options):
    """An RNN whose input term is its input: statistics of the first column are those of x."""
    options = INPUT_ONLY | {"min_rows": 2} | options
    module = rnnorm.RNN(1, 1, bias=False, norm=BatchNorm(**options))
    with torch.no_grad():
        module.weight_ih_l0.fill_(1.0)
    return module


def feed(module, *columns):
    """A minibatch of ragged sequences of single numbers."""
    module(pack_sequence([tensor(c)[:, None] for c in columns], enforce_sorted=False))
    return module.population_input_l0


def values(buffer):
    return buffer.flatten().tolist()


def test_the_first_estimate_is_the_first_minibatch():
    population = feed(layer(), [1.0, 10.0], [2.0, 20.0], [6.0, 60.0])
    assert values(population.mean) == [3.0, 30.0]
    assert values(population.var) == pytest.approx([7.0, 700.0])  # (4 + 1 + 9) / 2
    assert population.rows.tolist() == [3, 3]
    assert population.num_batches_tracked.tolist() == [1, 1]


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
            batch[1][0][0, 4] = torch.nan
        if call == 4:
            batch[1][1][2, 4] = torch.finfo(dtype).max
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


@pytest.mark.parametrize("options", [{"population": "shared"}, {"momentum": None}])
def test_nor_is_it_in_a_shared_population_or_the_first_minibatch(options):
    module = layer(**options)
    population = feed(module, [float("nan"), 5.0], [3.0, 7.0])
    assert population.num_batches_tracked.tolist() == [1] if population.shared else [0, 1]
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


def forget(module):
    module.reset_running_stats()


def load_none(module):
    module.load_state_dict(rnnorm.LSTM(2, 3, norm="batch").state_dict())


@pytest.mark.parametrize("lose", [forget, load_none])
def test_statistics_lost_after_an_evaluation_are_warned_of(lose):
    module, x = rnnorm.LSTM(2, 3, norm="batch"), torch.randn(3, 4, 2)
    module(x)
    module.eval()(x)
    lose(module)
    with pytest.warns(UserWarning, match="before any statistic"):
        module(x)


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


def test_evaluation_uses_the_unbiased_variance():
    module = layer(gamma=1.0, eps=1e-12)
    with torch.no_grad():
        module.weight_hh_l0.zero_()
    feed(module, [1.0], [2.0], [6.0])
    output, _ = module.eval()(tensor([[[4.0]]]))
    assert output.item() == pytest.approx(torch.tanh(tensor(1 / 7**0.5)).item())


@pytest.mark.parametrize("cls", [rnnorm.RNN, rnnorm.LSTM, rnnorm.GRU])
def test_evaluation_before_any_statistic_is_that_of_mean_0_and_variance_1(cls):
    torch.manual_seed(0)
    module = cls(2, 3, norm=BatchNorm()).eval()
    x = torch.randn(4, 2, 2)
    with pytest.warns(UserWarning, match=r"(?i)statistic"):
        got, _ = module(x)
    other = cls(2, 3, norm=BatchNorm(horizon=1)).eval()
    state = {name: p for name, p in module.state_dict().items() if "population" not in name}
    other.load_state_dict(state, strict=False)
    with torch.no_grad():
        for population in other.children():
            population.mean.zero_()
            population.var.fill_(1.0)
            population.rows.fill_(5)
            population.num_batches_tracked.fill_(1)
    torch.testing.assert_close(got, other(x)[0])


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.filterwarnings("ignore:evaluation before any statistic")
def test_an_average_of_models_without_their_counts_serves_each_step_by_its_own(frozen):
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(horizon=6))
    x = torch.randn(6, 5, 2)
    module(x)
    average = copy.deepcopy(module)
    for name, buffer in average.named_buffers():
        if name.endswith(("rows", "num_batches_tracked")):
            buffer.zero_()
    average = rnnorm.freeze(average) if frozen else average.eval()
    torch.testing.assert_close(average(x)[0], module.eval()(x)[0])


def test_what_fills_modules_that_were_made_without_memory_finds_a_way_to():
    module = rnnorm.LSTM(2, 3, norm="batch", device="meta")
    for part in module.modules():
        part.to_empty(device="cpu", recurse=False)
        part.reset_parameters()
    for population in module.children():
        assert (population.mean == 0).all()
        assert (population.var == 1).all()
        assert not population.num_batches_tracked.any()


def test_evaluation_before_any_statistic_warns_once():
    module = rnnorm.LSTM(2, 3, norm="batch").eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module(torch.zeros(4, 2, 2))
        module(torch.zeros(4, 2, 2))
    assert len(caught) == 1


def test_evaluation_after_one_minibatch_does_not_warn():
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm="batch")
    module(torch.randn(4, 5, 2))
    module.eval()(torch.randn(6, 1, 2))


def trained(**options):
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(**options))
    module(torch.randn(5, 4, 2))
    return module


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ["to", "method", "reload"])
def test_half_types_keep_their_moments_in_float32(dtype, how):
    module = trained()
    if how == "method":
        module = module.half() if dtype == torch.float16 else module.bfloat16()
    elif how == "to":
        module = module.to(dtype)
    else:
        module = rnnorm.LSTM(2, 3, norm=BatchNorm(), dtype=dtype)
        module.load_state_dict(trained().state_dict())
    assert module.weight_hh_l0.dtype == dtype
    for mine, first in zip(module.children(), trained().children(), strict=True):
        assert mine.mean.dtype == mine.var.dtype == torch.float32
        assert mine.rows.dtype == mine.num_batches_tracked.dtype == torch.int64
        assert torch.equal(mine.mean, first.mean)


def test_double_gives_double_moments():
    module = trained().double()
    assert all(p.mean.dtype == p.var.dtype == torch.float64 for p in module.children())
    module(torch.randn(5, 4, 2, dtype=torch.float64))


def test_a_count_is_never_converted():
    for dtype in (torch.float64, torch.bfloat16):
        for population in trained().to(dtype).children():
            assert population.rows.dtype == torch.int64
            assert population.rows.tolist() == [4] * 5


def test_a_population_holds_no_graph():
    for population in trained().children():
        assert all(not b.requires_grad and b.grad_fn is None for b in population.buffers())


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


def reloaded(state, **options):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(**options))
    module.load_state_dict(torch.load(file, weights_only=True))
    return module


@pytest.mark.parametrize("horizon", [None, 5, 8])
def test_a_checkpoint_loads_into_a_longer_horizon(horizon):
    module = trained()
    other = reloaded(module.state_dict(), horizon=horizon)
    x = torch.randn(9, 3, 2)
    torch.testing.assert_close(other.eval()(x)[0], module.eval()(x)[0])
    other.train()(torch.randn(9, 3, 2))
    counts = other.population_cell_l0.num_batches_tracked.tolist()
    assert counts[: horizon or 9] == [2, 2, 2, 2, 2, 1, 1, 1, 1][: horizon or 9]


def test_a_checkpoint_loads_into_a_shorter_horizon():
    module = trained()
    other = reloaded(module.state_dict(), horizon=2)
    x = torch.randn(2, 3, 2)
    torch.testing.assert_close(other.eval()(x)[0], module.eval()(x)[0])
    before = other.population_cell_l0.num_batches_tracked.tolist()
    other.train()(torch.randn(5, 3, 2))
    after = other.population_cell_l0.num_batches_tracked.tolist()
    assert after[:2] == [2, 2]
    assert after[2:] == before[2:]


def test_a_checkpoint_replaces_a_longer_population():
    module = trained()
    longer = trained()
    longer(torch.randn(9, 4, 2))
    longer.load_state_dict(module.state_dict())
    x = torch.randn(9, 3, 2)
    torch.testing.assert_close(longer.eval()(x)[0], module.eval()(x)[0])


@pytest.mark.parametrize("assign", [False, True])
def test_a_checkpoint_of_as_many_steps_is_copied_into_the_buffers_that_are_there(assign):
    module, stored = trained(), trained().state_dict()
    before = dict(module.named_buffers())
    module.load_state_dict(stored, assign=assign)
    for name, buffer in module.named_buffers():
        assert buffer is (stored[name] if assign else before[name]), name


def test_a_checkpoint_of_a_fresh_layer_loads():
    module = trained()
    fresh = rnnorm.LSTM(2, 3, norm="batch")
    module.load_state_dict(fresh.state_dict())
    assert not any(p.rows.any() for p in module.children())


@pytest.mark.parametrize("size", [(2, 4), (3, 3)])
def test_a_checkpoint_of_another_size_is_an_error(size):
    module = rnnorm.LSTM(*size, norm="batch")
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.load_state_dict(trained().state_dict())


def test_a_checkpoint_that_does_not_fit_loses_no_statistic():
    module = trained()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    other = rnnorm.LSTM(2, 5, norm="batch")
    other(torch.randn(2, 4, 2))
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.load_state_dict(other.state_dict())
    for name, buffer in module.named_buffers():
        if not name.endswith(("rows", "num_batches_tracked")):
            assert torch.equal(buffer, before[name]), name


def test_a_checkpoint_of_another_norm_is_an_error():
    with pytest.raises(RuntimeError, match="population_input_l0"):
        rnnorm.LSTM(2, 3).load_state_dict(trained().state_dict())
    with pytest.raises(RuntimeError, match=r"(?i)missing"):
        trained().load_state_dict(rnnorm.LSTM(2, 3).state_dict())


def test_a_copy_has_statistics_of_its_own():
    module = trained()
    other = copy.deepcopy(module)
    other(torch.randn(7, 4, 2))
    assert module.population_cell_l0.num_batches_tracked.tolist() == [1] * 5
    assert len(other.population_cell_l0.rows) == 7


def test_a_state_dict_names_each_population():
    keys = rnnorm.GRU(2, 3, norm="batch", bidirectional=True).state_dict().keys()
    want = {
        f"population_{site}_l0{suffix}.{buffer}"
        for site in ("input", "recurrent")
        for suffix in ("", "_reverse")
        for buffer in ("mean", "var", "rows", "num_batches_tracked")
    }
    assert want == {key for key in keys if "population" in key}


def test_layer_norm_and_no_norm_keep_no_statistics():
    for norm in ("layer", None):
        assert not list(rnnorm.LSTM(2, 3, norm=norm).buffers())


def rows_of(module):
    return [len(population.rows) for population in module.children()]


def test_select_horizon_sets_and_returns_the_best():
    module = trained()
    tried = []

    def evaluate(model):
        assert model is module
        tried.append(max(rows_of(model)))
        return abs(tried[-1] - 2.0)

    assert rnnorm.select_horizon(module, evaluate) == 2
    assert sorted(tried) == [1, 2, 4, 5]
    assert rows_of(module) == [2, 2, 2]
    x = torch.randn(5, 1, 2)
    module.eval()
    want = definition.network(module, BatchNorm(), [x[:, 0]]).outputs[0]
    torch.testing.assert_close(module(x)[0][:, 0], want)


@pytest.mark.parametrize("horizons", [[3, 1], np.array([3, 1])])
def test_select_horizon_tries_the_horizons_it_is_given(horizons):
    module = trained()
    tried = []

    def evaluate(model):
        tried.append(rows_of(model))
        return -float(tried[-1][0])

    assert rnnorm.select_horizon(module, evaluate, horizons=horizons) == 3
    assert sorted(tried) == [[1, 1, 1], [3, 3, 3]]
    assert rows_of(module) == [3, 3, 3]


@pytest.mark.parametrize("bad", [2, 3, 6])
def test_select_horizon_finds_where_the_statistics_go_bad(bad):
    torch.manual_seed(0)
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(gamma=1.0, input=None), initial_noise=0.0)
    x = torch.randn(8, 64, 2)
    want = module(x)[0].detach()
    with torch.no_grad():
        for population in module.children():
            population.mean[bad:] += 9.0  # a tail that few sequences reached

    def loss(model):
        with torch.no_grad():
            return (model(x)[0] - want).square().mean().item()

    assert rnnorm.select_horizon(module, loss, horizons=range(1, 9)) == bad
    assert module.training
    assert rows_of(module) == [bad] * 2


def test_select_horizon_passes_over_a_loss_that_is_no_number():
    losses = {1: float("nan"), 2: 3.0, 4: float("inf"), 5: float("nan")}
    module = trained()
    assert rnnorm.select_horizon(module, lambda model: losses[rows_of(model)[0]]) == 2
    assert rows_of(module) == [2, 2, 2]


def test_select_horizon_loses_nothing_when_the_evaluation_fails():
    module = trained()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def evaluate(model):
        raise KeyError("no such data")

    with pytest.raises(KeyError):
        rnnorm.select_horizon(module, evaluate)
    assert module.training
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize("horizons", [[], [0], [-1, 2]])
def test_select_horizon_needs_horizons_of_at_least_one(horizons):
    with pytest.raises(ValueError, match="horizon"):
        rnnorm.select_horizon(trained(), lambda _: 0.0, horizons=horizons)


@pytest.mark.parametrize("horizons", [3, [True], [1.5], ["2"]])
def test_select_horizon_needs_ints(horizons):
    with pytest.raises(TypeError, match="horizons must be ints, got"):
        rnnorm.select_horizon(trained(), lambda _: 0.0, horizons=horizons)


def test_select_horizon_needs_a_number():
    with pytest.raises(TypeError, match="evaluate must return a number, got None"):
        rnnorm.select_horizon(trained(), lambda _: None)


def test_select_horizon_needs_statistics():
    for norm in (None, "layer", BatchNorm(population="shared")):
        with pytest.raises(ValueError, match=r"(?i)statistic|population|norm"):
            rnnorm.select_horizon(rnnorm.LSTM(2, 3, norm=norm), lambda _: 0.0)


def test_steps_before_the_first_estimate_are_served_by_it():
    layer = rnnorm.RNN(2, 3, norm="batch").double()
    layer(torch.randn(2, 6, 2).double(), step=3)
    population = layer.population_recurrent_l0
    mean, var = population.at(torch.arange(8))
    assert torch.equal(mean[:4], population.mean[3].expand(4, -1))
    assert torch.equal(var[4:], population.var[4].expand(4, -1))


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("first", [0, 2, 3, 5, 9])
@pytest.mark.parametrize("start", [0, 3])
def test_consecutive_steps_are_served_as_each_alone(start, first, gradient):
    layer = rnnorm.RNN(2, 3, norm="batch").double()
    layer(torch.randn(4, 6, 2).double(), step=start)
    population = layer.population_recurrent_l0
    with torch.set_grad_enabled(gradient):
        mean, var = population.consecutive(first, 2)
    assert len(mean) == len(var) == (2 if first < start + 3 else 1)
    for k in range(2):
        served = population.at(torch.tensor(first + k))
        assert torch.equal(mean[min(k, len(mean) - 1), 0], served[0])
        assert torch.equal(var[min(k, len(var) - 1), 0], served[1])


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("first", [0, 3, 9, torch.tensor([9, 1, 2]), torch.tensor([7, 8])], ids=str)
@pytest.mark.parametrize("horizon", [None, 7])
def test_a_long_sequence_asks_for_no_more_rows_than_have_an_estimate(
    horizon, first, frozen, gradient
):
    layer = rnnorm.RNN(2, 3, norm=BatchNorm(horizon=horizon))
    layer(torch.randn(4, 6, 2))
    layer = rnnorm.freeze(layer) if frozen else layer.eval()
    population = layer.population_recurrent_l0
    with torch.set_grad_enabled(gradient):
        mean, var = population.consecutive(first, 1000)
    earliest = int(torch.as_tensor(first).min())
    assert len(mean) == len(var) == max(1, 4 - earliest)
    steps = torch.arange(len(mean) + 5).unsqueeze(1) + first
    for got, want in zip((mean, var), population.at(steps), strict=True):
        assert torch.equal(got[torch.arange(len(want)).clamp(max=len(got) - 1)], want)


def test_in_evaluation_without_gradient_rows_in_a_row_are_no_copy():
    layer = rnnorm.RNN(2, 3, norm="batch")
    layer(torch.randn(4, 6, 2))
    population = layer.eval().population_recurrent_l0
    with torch.no_grad():
        mean, _ = population.consecutive(1, 1000)
    assert mean.data_ptr() == population.mean[1].data_ptr()


@pytest.mark.parametrize("norm", ["batch", BatchNorm(population="shared"), "bn-e*"])
def test_evaluation_is_differentiated_though_statistics_change_before_backward(norm):
    layer = rnnorm.LSTM(2, 3, norm=norm)
    x = torch.randn(4, 6, 2)
    layer(x)
    output = layer.eval()(x)[0]
    expected = torch.autograd.grad(output.sum(), layer.weight_hh_l0, retain_graph=True)[0]
    layer.train()(2 * x)
    assert torch.equal(torch.autograd.grad(output.sum(), layer.weight_hh_l0)[0], expected)


def test_an_assigned_half_checkpoint_keeps_wide_moments():
    layer = rnnorm.RNN(2, 3, norm="batch")
    layer(torch.randn(2, 6, 2))
    halves = {
        name: value.half() if value.is_floating_point() else value
        for name, value in layer.state_dict().items()
    }
    layer.load_state_dict(halves, assign=True)
    assert layer.population_input_l0.var.dtype == torch.float32


def test_a_checkpoint_without_rows_is_refused():
    layer = rnnorm.RNN(2, 3, norm="batch")
    none = {
        name: value[:0] if "population" in name else value
        for name, value in layer.state_dict().items()
    }
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(none)


@pytest.mark.parametrize("options", [{"input": "sequence"}, {"population": "shared"}])
def test_autocast_leaves_shared_statistics_in_float32(options):
    columns = [1.0, 1000.5], [2.0, 2001.0], [6.0, 3000.0]
    expected = feed(layer(**options), *columns)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = feed(layer(**options), *columns)
    assert found.mean.dtype == torch.float32
    torch.testing.assert_close(found.mean, expected.mean, rtol=0.01, atol=0)
    torch.testing.assert_close(found.var, expected.var, rtol=0.01, atol=0)


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


def test_a_count_that_is_zeroed_in_place_no_longer_serves():
    layer = rnnorm.RNN(2, 3, norm="batch")
    layer(torch.randn(3, 6, 2))
    population = layer.eval().population_input_l0
    with torch.no_grad():
        assert torch.equal(population.consecutive(1, 1)[0][0, 0], population.mean[1])
        population.num_batches_tracked.data[1] = 0
        assert torch.equal(population.consecutive(1, 1)[0][0, 0], population.mean[0])


@pytest.mark.parametrize("how", ["type", "assign"])
def test_counts_stay_integers_where_all_else_is_converted(how):
    module, same = trained(), trained()
    if how == "type":
        module.type(torch.float32)
    else:
        stored = {name: value.float() for name, value in module.state_dict().items()}
        module.load_state_dict(stored, assign=True)
    x = torch.randn(5, 4, 2)
    for each in (module, same):
        torch.manual_seed(1)
        each(x)
    for mine, first in zip(module.children(), same.children(), strict=True):
        for name in ("rows", "num_batches_tracked", "mean", "var"):
            assert torch.equal(getattr(mine, name), getattr(first, name))
            assert getattr(mine, name).dtype == getattr(first, name).dtype


def test_buffers_do_not_grow_in_a_replica_that_is_thrown_away():
    population = Population(3, rnnorm.BatchNorm(), shared=False)
    # what torch.nn.DataParallel calls its copies
    population._is_replica = True
    population.grow(1)
    with pytest.raises(RuntimeError, match=r"grow to 2 under torch.nn.DataParallel"):
        population.grow(2)
