"""The training scores of each epoch: what they are the mean of, and how they come back."""

import math
from types import SimpleNamespace

import pytest
import torch
from interruption import Interruption, KillAt, assert_resumes_alike
from lightning.pytorch import Callback

from rnnorm.experiments.trained.curve import read_curve, trained_at
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import TrainingScores, read_metrics
from rnnorm.experiments.training.score import Score

RECIPE = "demo/digits-bn"
EVERY_STEP = "--trainer.log_every_n_steps=1"
# 130 images in minibatches of 20: the last one has 10
ROWS = [20] * 6 + [10]


def curves(folder):
    return read_metrics(folder / "metrics.csv")


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_training_score_is_the_mean_over_the_rows_of_an_epoch(tiny, name):
    found = curves(fit(RECIPE, run_dir="run", overrides=[*tiny, EVERY_STEP]).folder)
    steps = [point.value for point in found[f"train/{name}"]]
    means = [
        sum(value * rows for value, rows in zip(steps[i : i + 7], ROWS, strict=True)) / 130
        for i in (0, 7, 14)
    ]
    points = found[f"train_epoch/{name}"]
    assert [point.value for point in points] == pytest.approx(means, rel=1e-6)
    # beside the validation of the same step
    assert [p[:2] for p in points] == [p[:2] for p in found[f"val/{name}"]]


def test_a_resumed_training_has_the_training_scores_of_an_uninterrupted_one(tmp_path, tiny):
    assert_resumes_alike(tmp_path, RECIPE, [3, 9], overrides=tiny)


class OldCheckpoints(Callback):
    """Takes out of checkpoints what those of older versions lack."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["callbacks"].pop("TrainingScores", None)


def test_an_epoch_whose_beginning_is_unknown_has_no_training_score(tiny):
    options = {"every_n_steps": 1, "overrides": tiny}
    with pytest.raises(Interruption):
        fit(RECIPE, run_dir="run", callbacks=[KillAt(9), OldCheckpoints()], **options)
    assert "TrainingScores" not in read_checkpoint("run/checkpoints/last.ckpt")["callbacks"]
    found = curves(fit(resume="run").folder)
    assert [point.epoch for point in found["train_epoch/loss"]] == [0, 2]


def test_validations_within_an_epoch_have_no_training_score(tiny):
    run = fit(RECIPE, run_dir="run", overrides=[*tiny, "--trainer.val_check_interval=3"])
    curve = read_curve(run.folder, Score("accuracy", "max"), "BN-LSTM", 1)
    assert curve.steps == [3, 6, 10, 13, 17, 20]
    assert all(map(math.isnan, curve.trained))
    run = fit(RECIPE, run_dir="ends", overrides=tiny)
    curve = read_curve(run.folder, Score("accuracy", "max"), "BN-LSTM", 1)
    (third,) = [p.value for p in curves(run.folder)["train_epoch/accuracy"] if p.epoch == 2]
    assert trained_at(curve, 21) == 100 * third
    assert trained_at(curve, 20) is None
    assert trained_at(curve, None) is None


def test_a_text_has_its_score_in_training_too(sentences):
    overrides = [
        "--trainer.accelerator=cpu",
        EVERY_STEP,
        "--model.hidden_size=6",
        "--model.vocabulary_size=19",
        "--data.length=20",
        "--data.batch_size=10",
    ]
    run = fit("cooijmans2016/ptb-char-lstm", data_dir=sentences, epochs=1, overrides=overrides)
    found = curves(run.folder)
    (loss,), (bits,) = found["train_epoch/loss"], found["train_epoch/bits_per_character"]
    assert bits.value == pytest.approx(loss.value / math.log(2), rel=1e-6)


def test_a_minibatch_without_terms_counts_for_nothing():
    scores, logged = TrainingScores(), {}
    model = SimpleNamespace(logged={}, epoch_scores=dict, log=logged.__setitem__)
    scores.on_train_batch_start(None, model, None, 0)
    for mean, terms in ((1.0, 3), (math.nan, 0), (5.0, 1)):
        model.logged["loss"] = torch.tensor(mean), terms
        scores.on_train_batch_end(None, model)
    scores.on_train_epoch_end(SimpleNamespace(callback_metrics={}), model)
    assert logged == {"train_epoch/loss": 2.0}


def test_another_model_has_no_training_scores():
    scores = TrainingScores()
    scores.on_train_batch_end(None, torch.nn.Linear(1, 1))
    scores.on_train_epoch_end(None, torch.nn.Linear(1, 1))
    assert scores.state_dict() == {"sums": {}, "whole": False}
