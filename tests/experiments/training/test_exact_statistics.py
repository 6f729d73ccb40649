import copy

import pytest
import torch

import rnnorm
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.lightning import ExactStatistics


def test_checkpoints_hold_the_exact_statistics_of_their_weights(tiny):
    # without noise on h_0 the estimate is a function of the weights
    run = fit("demo/digits-bn", overrides=[*tiny, "--model.init_args.initial_noise=0"])
    model = copy.deepcopy(run.experiment.model)
    model.load_state_dict(read_checkpoint(run.last_checkpoint)["state_dict"])
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loader = run.experiment.datamodule.train_dataloader()
    loader.set_epoch(2)
    rnnorm.update_bn(loader, model)
    assert kept
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, kept[name], msg=name)


def test_the_trainings_place_in_the_data_is_kept(tiny):
    overrides = [*tiny, "--trainer.max_epochs=1", "--trainer.val_check_interval=3"]
    run = fit("demo/digits-bn", overrides=overrides)
    assert run.trainer.global_step == 7


@pytest.mark.parametrize("batches", [1, 3])
def test_some_minibatches_are_enough(tiny, batches):
    option = f"--trainer.callbacks.init_args.batches={batches}"
    run = fit("demo/digits-bn", overrides=[*tiny, option, "--trainer.max_epochs=1"])
    counts = [
        b for n, b in run.experiment.model.named_buffers() if n.endswith("num_batches_tracked")
    ]
    assert all((count == batches).all() for count in counts)


def test_a_model_without_statistics_is_left_alone():
    class NoStatistics:
        sanity_checking = False

    ExactStatistics().on_validation_epoch_start(NoStatistics(), torch.nn.Linear(1, 1))
