"""Law: a layer whose parameters are sharded over ranks trains as one that is whole."""

import copy

import pytest
import torch
from cases import assert_all_close
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ranks
from rnnorm import LSTM, BatchNorm, synchronize


def train(model, batches):
    """The output of an evaluation after a step on each batch."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in batches:
        model(x)[0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return model.eval()(batches[0])[0]


def train_both(rank, world, folder):
    """A rank has its part of the rows, and the whole layer all of them."""
    ranks.join(rank, world, folder)
    mesh = init_device_mesh("cpu", (world,))
    for norm in (None, "layer", "rms", BatchNorm(horizon=5)):
        torch.manual_seed(0)
        whole = LSTM(4, 6, num_layers=2, norm=norm, initial_noise=0.0 if norm else None).double()
        sharded = synchronize(copy.deepcopy(whole))
        fully_shard(sharded, mesh=mesh)
        batches = [torch.randn(5, 16, 4).double() for _ in range(3)]
        output = train(sharded, [x.chunk(world, 1)[rank] for x in batches])
        assert_all_close([output], [train(whole, batches).chunk(world, 1)[rank]])
        kept = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
        assert_all_close(kept, whole.state_dict())
    ranks.leave()


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.6 shards nothing on a CPU")
def test_a_sharded_layer_trains_as_a_whole_one(tmp_path):
    for code, out in ranks.finish(ranks.start(train_both, 2, tmp_path)):
        assert code == 0, out
