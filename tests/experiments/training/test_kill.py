"""A training that is killed amid its files or minibatches goes on where a checkpoint stands."""

import pytest
from interruption import Interruption, KillAt, assert_same, logged, weights
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from rnnorm.experiments.training.checkpoint import WholeFiles
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import MetricsFile

RECIPE = "demo/digits-bn"


@pytest.mark.parametrize("step", [1, 3, 4])
def test_between_accumulated_minibatches_there_is_no_checkpoint(tmp_path, tiny, step):
    # 7 minibatches an epoch: steps of three, three and one
    tiny = [*tiny, "--trainer.accumulate_grad_batches=3"]
    whole = fit(RECIPE, run_dir=tmp_path / "whole", overrides=tiny)
    assert whole.trainer.global_step == 9
    folder = tmp_path / "run"

    class KillBetween(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step == step and batch_idx in (1, 4):
                raise Interruption

    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=1, callbacks=[KillBetween()])
    fit(resume=folder)
    one, two = weights(tmp_path / "whole"), weights(folder)
    assert_same(one["state_dict"], two["state_dict"])
    assert one["callbacks"]["Clock"]["steps"] == two["callbacks"]["Clock"]["steps"] == 9


def test_a_schedule_of_accumulation_goes_on_within_an_epoch(tmp_path, tiny):
    def scheduled():
        return GradientAccumulationScheduler({0: 2})

    whole = fit(RECIPE, run_dir=tmp_path / "whole", overrides=tiny, callbacks=[scheduled()])
    # 7 minibatches an epoch: steps of two, two, two and one
    assert whole.trainer.global_step == 12
    folder = tmp_path / "run"
    cut = [scheduled(), KillAt(2)]
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir=folder, overrides=tiny, every_n_steps=1, callbacks=cut)
    fit(resume=folder, callbacks=[scheduled()])
    assert_same(*(weights(each)["state_dict"] for each in (tmp_path / "whole", folder)))


class KillAfter:
    """Ends a training at once after so many of its files, checkpoints or lines of metrics."""

    def __init__(self, monkeypatch):
        self.files, self.last = "", 0
        self._patch(monkeypatch, WholeFiles, "save_checkpoint", "C")
        self._patch(monkeypatch, MetricsFile, "log_metrics", "M")

    def _patch(self, monkeypatch, owner, name, letter):
        own = getattr(owner, name)

        def written(*given, **named):
            own(*given, **named)
            self.files += letter
            if len(self.files) == self.last:
                raise Interruption

        monkeypatch.setattr(owner, name, written)


class LogsOfEpochs(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("train/steps", float(trainer.global_step))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "options"),
    [
        (2, ["log_every_n_steps=1"]),
        (1, ["log_every_n_steps=2"]),
        (1, ["log_every_n_steps=1", "accumulate_grad_batches=2"]),
        (2, ["log_every_n_steps=1", "val_check_interval=3"]),
        # validations between the minibatches of a step
        (1, ["log_every_n_steps=1", "accumulate_grad_batches=3", "val_check_interval=2"]),
    ],
)
def test_whenever_a_training_is_killed_no_line_is_lost_or_there_twice(
    tmp_path, tiny, monkeypatch, every, options
):
    tiny += ["--trainer.max_epochs=2", *(f"--trainer.{option}" for option in options)]
    given = {"overrides": tiny, "every_n_steps": every, "quiet": True}
    kill, whole = KillAfter(monkeypatch), tmp_path / "whole"
    fit(RECIPE, run_dir=whole, callbacks=[LogsOfEpochs()], **given)
    files = kill.files
    assert {"MC", "CM"} < {files[i : i + 2] for i in range(len(files))}
    # within the first epoch, at its end and at the end of the last one
    for last in (2, 3, len(files) // 2 - 1, len(files) // 2, len(files) - 1):
        folder = tmp_path / f"run-{last}"
        kill.files, kill.last = "", last
        with pytest.raises(Interruption):
            fit(RECIPE, run_dir=folder, callbacks=[LogsOfEpochs()], **given)
        kill.last = 0
        fit(resume=folder, every_n_steps=every, callbacks=[LogsOfEpochs()], quiet=True)
        assert logged(folder) == logged(whole), files[:last]
        assert_same(weights(whole)["state_dict"], weights(folder)["state_dict"])
