"""Buffers that grow while somebody else holds a copy of the model or a checkpoint of it."""

import copy
import gc
import pickle
import threading
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import rnnorm.diagnostics
from rnnorm import BatchNorm
from rnnorm.norm.population import BUFFERS
from rnnorm.tracing import RELEASE


def model(horizon=None):
    norm = BatchNorm(horizon=horizon)
    return torch.nn.Sequential(rnnorm.LSTM(2, 3, norm=norm, initial_noise=0.0))


def train(network, steps):
    network(torch.randn(steps, 8, 2))


def steps_of(network):
    (steps,) = {len(buffer) for buffer in network.buffers() if buffer.dim()}
    return steps


@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.9)], ids=["swa", "ema"])
@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_made_before_the_first_minibatch_goes_on(use_buffers, average):
    network = model()
    averaged = AveragedModel(network, multi_avg_fn=average, use_buffers=use_buffers)
    for steps in (4, 7, 3, 9):
        train(network, steps)
        averaged.update_parameters(network)
        assert steps_of(averaged.module) == steps_of(network) == max(4, steps_of(network))
    rnnorm.update_bn([torch.randn(9, 40, 2)], averaged)
    assert averaged.module[0].population_cell_l0.rows.tolist() == [40] * 9


def test_a_copy_grows_along_and_keeps_what_serves_its_steps():
    network = model()
    train(network, 4)
    twin = copy.deepcopy(network).eval()
    x = torch.randn(12, 3, 2)
    before = twin(x)[0]
    train(network, 9)
    assert steps_of(twin) == 9
    assert torch.equal(twin(x)[0], before)
    # and has statistics of its own
    train(twin.train(), 11)
    assert (steps_of(twin), steps_of(network)) == (11, 9)
    train(network, 10)
    assert (steps_of(twin), steps_of(network)) == (11, 10)


def test_copies_of_a_copy_grow_though_the_first_is_gone():
    network = model()
    twin = copy.deepcopy(network)
    grandchild = copy.deepcopy(twin)
    train(network, 4)
    assert steps_of(twin) == steps_of(grandchild) == 4
    del network
    gc.collect()
    train(twin, 6)
    assert steps_of(grandchild) == 6
    del twin
    gc.collect()
    train(grandchild, 8)


@pytest.mark.slow
@pytest.mark.skipif(RELEASE < (2, 13), reason="the compiler of this torch does not take layers")
def test_copies_grow_though_the_layer_is_compiled():
    layer = rnnorm.LSTM(2, 3, norm="batch", initial_noise=0.0)
    twins = [copy.deepcopy(layer)]
    compiled = torch.compile(layer, backend="eager")
    for steps in (3, 5, 7, 9):
        train(compiled, steps)
        assert {steps_of(each) for each in (layer, *twins)} == {steps}
        twins.append(copy.deepcopy(layer))
    alone = rnnorm.LSTM(2, 3, norm="batch", initial_noise=0.0)
    compiled = torch.compile(alone, backend="eager")
    for steps in (3, 5, 7):
        train(compiled, steps)
    late = copy.deepcopy(alone)
    train(compiled, 9)
    assert steps_of(late) == steps_of(alone) == 9


def test_a_copy_is_not_kept_alive():
    network = model()
    twin = copy.deepcopy(network[0].population_cell_l0)
    gone = []
    weakref.finalize(twin, gone.append, True)
    del twin
    gc.collect()
    assert gone == [True]
    train(network, 4)


def test_a_longer_checkpoint_makes_room_in_copies_and_a_shorter_one_takes_none():
    long, short, network = model(), model(), model()
    train(long, 9)
    train(short, 3)
    twin = copy.deepcopy(network)
    network.load_state_dict(long.state_dict())
    assert steps_of(twin) == 9
    network.load_state_dict(short.state_dict())
    assert (steps_of(network), steps_of(twin)) == (3, 9)


def test_a_copy_is_no_part_of_a_pickle_or_a_state_dict():
    network = model()
    alone, names = len(pickle.dumps(network)), set(network.state_dict())
    twins = [copy.deepcopy(network) for _ in range(3)]
    assert abs(len(pickle.dumps(network)) - alone) < 100
    assert set(network.state_dict()) == names
    again = pickle.loads(pickle.dumps(network))
    train(network, 4)
    assert [steps_of(each) for each in (*twins, again)] == [4, 4, 4, 1]


def test_a_frozen_copy_does_not_follow():
    network = model()
    train(network, 4)
    frozen = rnnorm.freeze(network)
    other = copy.deepcopy(frozen)
    train(network, 9)
    assert steps_of(frozen) == 4
    frozen.load_state_dict(network.state_dict())
    assert (steps_of(frozen), steps_of(other)) == (9, 4)


def test_copies_may_be_made_in_several_threads():
    network, twins = model(), []

    def make():
        twins.extend(copy.deepcopy(network) for _ in range(20))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    train(network, 12)
    assert [steps_of(twin) for twin in twins] == [12] * 80


@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_wants_a_horizon_or_load_state_dict(tmp_path):
    for horizon in (6, None):
        folder = tmp_path / str(horizon)
        network, fresh = model(horizon), model(horizon)
        train(network, 4)
        dcp.save({"model": network.state_dict()}, checkpoint_id=folder)
        state = {"model": fresh.state_dict()}
        if horizon is None:
            # as docs/trouble.md has it
            with pytest.raises(CheckpointException, match="Size mismatch between saved"):
                dcp.load(state, checkpoint_id=folder)
            dcp_to_torch_save(folder, tmp_path / "whole.pt")
            state = torch.load(tmp_path / "whole.pt")
        else:
            dcp.load(state, checkpoint_id=folder)
        fresh.load_state_dict(state["model"])
        for name, buffer in network.state_dict().items():
            assert torch.equal(fresh.state_dict()[name], buffer), name


@pytest.mark.parametrize("kernel", [nullcontext, lambda: rnnorm.use_backend("reference")])
@pytest.mark.parametrize("lengths", [None, [12, 2]])
def test_a_copy_may_be_evaluated_while_its_original_lets_it_grow(monkeypatch, kernel, lengths):
    network = rnnorm.GRU(2, 3, norm="batch", initial_noise=0.0)
    train(network, 5)
    twin, x, found = copy.deepcopy(network).eval(), torch.randn(12, 2, 2), []
    buffers = {*twin.modules()}

    @torch.no_grad()
    def evaluate():
        with kernel():
            return twin(x, lengths=lengths)[0]

    wanted, put = evaluate(), torch.nn.Module.__setattr__

    def between(module, name, value):
        put(module, name, value)
        if module in buffers and name in BUFFERS:
            found.append(evaluate())

    monkeypatch.setattr(torch.nn.Module, "__setattr__", between)
    train(network, 8)
    assert len(found) == 8
    for output in found:
        torch.testing.assert_close(output, wanted)


@pytest.mark.parametrize("failing", [True, False])
def test_an_average_goes_on_after_update_bn_over_longer_sequences(failing):
    network = model()
    average = AveragedModel(network)
    train(network, 5)
    average.update_parameters(network)

    def loader():
        yield torch.randn(9, 64, 2)
        if failing:
            raise KeyError("no more data")

    with pytest.raises(KeyError) if failing else nullcontext():
        rnnorm.update_bn(loader(), network, forward=lambda model, x: model[0](x))
    assert steps_of(network) == steps_of(average.module) == (5 if failing else 9)
    train(network, 5)
    average.update_parameters(network)


def test_a_copy_made_within_batch_statistics_grows_afterwards():
    network = model()
    train(network, 3)
    network.eval()
    with rnnorm.diagnostics.batch_statistics(network):
        average = AveragedModel(network)
    network.train()
    train(network, 9)
    average.update_parameters(network)
    assert steps_of(average.module) == 9


def test_an_average_goes_on_after_batch_statistics_of_longer_sequences():
    network = model()
    average = AveragedModel(network)
    train(network, 5)
    network.eval()
    with torch.no_grad(), rnnorm.diagnostics.batch_statistics(network):
        train(network, 9)
    assert steps_of(network) == steps_of(average.module) == 5
    network.train()
    train(network, 7)
    assert steps_of(average.module) == 7
    average.update_parameters(network)


def test_rows_that_a_call_with_given_buffers_added_are_said_to_be_lost():
    network = model()
    # a checkpoint with fewer rows loses none that the network had
    short = {k: v.clone() for k, v in network.state_dict().items()}
    train(network, 4)
    network.load_state_dict(short)
    train(network, 2)

    def call():
        given = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        functional_call(network, given, (torch.randn(6, 8, 2),))

    call()
    assert steps_of(network) == 2
    with pytest.warns(RuntimeWarning, match=r"statistics of 4 steps are lost.*norm\.horizon"):
        call()


def test_rows_that_a_failed_update_takes_back_are_not_said_to_be_lost():
    network = model()
    train(network, 4)
    with pytest.raises(RuntimeError, match="Expected 2, got 5"):
        rnnorm.update_bn([torch.randn(9, 8, 2), torch.randn(9, 8, 5)], network)
    assert steps_of(network) == 4
    train(network, 9)


def test_a_call_with_given_buffers_of_a_horizon_updates_them():
    network = model(horizon=6)
    before = network[0].population_cell_l0.mean.clone()
    given = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for _ in range(2):
        functional_call(network, given, (torch.randn(6, 8, 2),))
    assert not torch.equal(network[0].population_cell_l0.mean, before)
    assert network[0].population_cell_l0.num_batches_tracked.tolist() == [2] * 6
