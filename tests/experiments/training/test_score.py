import pytest
import torch
from lightning.pytorch import LightningModule

from rnnorm.experiments.tasks.language.model import LanguageModel
from rnnorm.experiments.tasks.pixels import PixelClassifier
from rnnorm.experiments.training.checkpointing import KeepLastAndBest
from rnnorm.experiments.training.score import Metric, Score, score_of


class FakeTrainer:
    sanity_checking = False

    def __init__(self):
        self.saved = []
        self.callback_metrics = {}

    def save_checkpoint(self, path):
        self.saved.append((self.current_epoch, path.name))


@pytest.mark.parametrize(("mode", "best"), [("max", [0, 2]), ("min", [0, 1])])
def test_the_best_checkpoint_is_that_of_the_tasks_score(tmp_path, mode, best):
    keep, trainer = KeepLastAndBest(tmp_path, Score("quality", mode)), FakeTrainer()
    for epoch, value in enumerate((2.0, 1.0, 3.0, 1.5)):
        trainer.current_epoch = trainer.global_step = epoch
        trainer.callback_metrics = {"val/quality": torch.tensor(value), "val/loss": torch.tensor(0)}
        keep.on_validation_end(trainer, None)
    assert [epoch for epoch, name in trainer.saved if name == "best.ckpt"] == best
    assert keep.best == (3.0 if mode == "max" else 1.0)
    assert keep.best_epoch == best[-1] + 1


def test_each_task_has_a_score():
    assert score_of(PixelClassifier()) == Score("accuracy", "max")
    for unit, name in (
        ("bits", "bits_per_character"),
        ("perplexity", "perplexity"),
        ("nats", "loss"),
    ):
        assert score_of(LanguageModel(3, hidden_size=2, unit=unit)) == Score(name, "min")


def test_a_model_without_a_score_is_judged_by_its_loss():
    assert score_of(LightningModule()) == Score("loss", "min")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("accuracy", 0.9124, "test accuracy 91.24 %"),
        ("frame_error", 0.333, "test frame error 33.30 %"),
        ("error", 0.0983333, "test error 9.83 %"),
        ("bits_per_character", 1.32, "test bits per character 1.3200"),
        ("perplexity", 119.2, "test perplexity 119.20"),
        ("perplexity", 10.0, "test perplexity 10.00"),
        ("perplexity", 9.9, "test perplexity 9.9000"),
        ("bleu", 9.9, "test BLEU 9.9000"),
        ("loss", 1.2517, "test loss 1.2517 nats"),
        ("error", float("nan"), "test error nan %"),
    ],
)
def test_a_metric_is_said_in_its_unit(name, value, said):
    assert Metric(name).format("test", value) == said
