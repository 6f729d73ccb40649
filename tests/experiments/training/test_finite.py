from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback

from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.finite import DivergedError, StopIfNotFinite, _not_finite
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import read_metrics

RECIPE = "demo/digits-bn"


class Break(Callback):
    """Puts nan into a tensor of the model at one step."""

    def __init__(self, step, hook, what):
        self.step, self.what = step, what
        setattr(self, hook, self._break)

    def _break(self, trainer, module, *_):
        if trainer.global_step == self.step:
            with torch.no_grad():
                self.what(module).view(-1)[0] = torch.nan


def gradient(module):
    return module.rnn.weight_hh_l0.grad


def parameter(module):
    return module.classifier.bias


def statistic(module):
    return module.rnn.population_cell_l0.var


# the broken value is found within the step, before the next checkpoint
@pytest.mark.parametrize(
    ("hook", "what", "step", "said"),
    [
        ("on_after_backward", gradient, 9, "step 9 .*the gradient of rnn.weight_hh_l0"),
        ("on_before_zero_grad", parameter, 9, "step 10 .*the parameter classifier.bias"),
        ("on_before_zero_grad", statistic, 9, "step 10 .*the statistic rnn.population_cell_l0.var"),
        ("on_train_batch_start", parameter, 9, "step 9 .*the loss is nan"),
    ],
)
def test_a_diverging_training_stops_and_keeps_the_last_good_checkpoint(
    tmp_path, tiny, hook, what, step, said
):
    folder = tmp_path / "run"
    with pytest.raises(DivergedError, match=said) as error:
        fit(
            RECIPE,
            run_dir=folder,
            overrides=tiny,
            every_n_steps=2,
            callbacks=[Break(step, hook, what)],
        )
    message = str(error.value)
    assert "epoch 1" in message
    assert "initial_noise" not in message
    path = folder / "checkpoints" / "last.ckpt"
    assert f"last good checkpoint is {path} (step 8)" in message
    state = read_checkpoint(path)["state_dict"]
    assert all(torch.isfinite(value).all() for value in state.values())


def test_the_run_folder_says_it_until_the_training_goes_on(tmp_path, tiny):
    folder, wrong = tmp_path / "run", Break(9, "on_after_backward", gradient)
    for given in ({"recipe": RECIPE, "run_dir": folder, "overrides": tiny}, {"resume": folder}):
        with pytest.raises(DivergedError):
            fit(**given, every_n_steps=2, callbacks=[wrong])
        (point,) = read_metrics(folder / "metrics.csv")["diverged"]
        assert point.step == 9
    fit(resume=folder)
    assert "diverged" not in read_metrics(folder / "metrics.csv")


@pytest.mark.parametrize(
    ("recipe", "noise", "told"),
    [
        (RECIPE, 0, True),
        (RECIPE, 0.1, False),
        ("demo/digits-ln", 0, True),
        ("demo/digits-lstm", 0, False),
    ],
)
def test_noise_is_the_advice_where_a_norm_lacks_it(tiny, recipe, noise, told):
    overrides = [*tiny, f"--model.init_args.initial_noise={noise}"]
    with pytest.raises(DivergedError, match="smaller learning rate") as error:
        fit(recipe, overrides=overrides, callbacks=[Break(0, "on_after_backward", gradient)])
    assert ("initial_noise=0.1" in str(error.value)) == told


def test_a_real_divergence_is_caught(tmp_path, tiny):
    with pytest.raises(DivergedError, match=r"is not finite|the loss is"):
        fit(
            "demo/digits-lstm",
            run_dir=tmp_path / "run",
            overrides=[*tiny, "--optimizer.init_args.lr=1e38", "--trainer.max_epochs=20"],
        )


def test_before_the_first_checkpoint(tmp_path, tiny):
    with pytest.raises(DivergedError, match=r"step 0 .*No checkpoint had been written yet"):
        fit(
            RECIPE,
            run_dir=tmp_path / "run",
            overrides=tiny,
            callbacks=[Break(0, "on_after_backward", gradient)],
        )


# on a GPU: 16-mixed is bfloat16 on a CPU
def test_a_gradient_that_overflows_is_left_to_the_scale_of_the_loss_down_to_1():
    module = torch.nn.Linear(2, 1)
    module.weight.grad = torch.full((1, 2), torch.inf)
    module.hparams, check = {}, StopIfNotFinite().on_before_optimizer_step

    def trainer(scale):
        scaler = SimpleNamespace(get_scale=lambda: scale)
        plugin = SimpleNamespace(scaler=scaler)
        return SimpleNamespace(precision_plugin=plugin, global_step=3, current_epoch=0)

    check(trainer(2.0), module, None)
    with pytest.raises(DivergedError, match="the gradient of weight is not finite"):
        check(trainer(1.0), module, None)


def test_a_sum_that_overflows_is_no_divergence():
    large = ("large", torch.full((10,), 3e38))
    assert _not_finite([large, ("zero", torch.zeros(2))]) is None
    assert _not_finite([large, ("broken", torch.tensor([0, torch.nan]))]) == "broken"
