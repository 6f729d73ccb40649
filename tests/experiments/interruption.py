"""A training that is cut off in the middle of a step."""

import pytest
import torch
from lightning.pytorch import Callback

from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import read_metrics


class Interruption(BaseException):
    pass


class KillAt(Callback):
    """Ends the training in the middle of the step after this many."""

    def __init__(self, step):
        self.step = step

    def on_before_zero_grad(self, trainer, *_):
        if trainer.global_step == self.step:
            raise Interruption


def weights(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")


def assert_same(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def logged(folder):
    """The lines of metrics.csv, without the seconds."""
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [[*line.split(",")[:2], *line.split(",")[3:]] for line in lines]


def assert_resumes_alike(folder, recipe, steps, **options):
    """Cut off after any of these steps and resumed, a training is the uninterrupted one.

    Args:
        folder: where all of them run.
        recipe: what is trained.
        steps: in the middle of the step after each of them one is cut off.
        **options: of ``fit``.
    """
    fit(recipe, run_dir=folder / "whole", **options)
    weights, curves = _came_out(folder / "whole")
    for step in steps:
        run = folder / f"cut-{step}"
        with pytest.raises(Interruption):
            fit(recipe, run_dir=run, every_n_steps=1, callbacks=[KillAt(step)], **options)
        fit(resume=run, every_n_steps=1)
        own_weights, own_curves = _came_out(run)
        assert own_weights.keys() == weights.keys()
        for name, value in weights.items():
            assert torch.equal(own_weights[name], value), f"{name}, cut off after step {step}"
        assert own_curves == curves, f"cut off after step {step}"


def _came_out(folder):
    """Weights, and the curve of each metric without its seconds."""
    weights = read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]
    curves = read_metrics(folder / "metrics.csv")
    return weights, {
        name: [p._replace(seconds=0) for p in points] for name, points in curves.items()
    }
