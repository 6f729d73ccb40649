"""Populations in checkpoints, in copies and in other dtypes."""

import copy
import io

import pytest
import torch

import rnnorm
from populations import trained
from rnnorm import BatchNorm


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


def test_a_checkpoint_of_many_steps_does_not_fit_one_row_for_all():
    module = rnnorm.LSTM(2, 3, norm=BatchNorm(population="shared"))
    before = copy.deepcopy(dict(module.named_buffers()))
    refused = r"population_cell_l0\.mean must have one row, .* got those of 5 steps: .*'per_step'"
    with pytest.raises(RuntimeError, match=refused):
        module.load_state_dict(trained().state_dict())
    torch.testing.assert_close(dict(module.named_buffers()), before)


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
