"""The first 50 steps of recorded recipes still have the losses that they had."""

import os
from pathlib import Path

import pytest
import yaml

from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import read_metrics

RECORDED = Path(__file__).with_name("first_losses.yaml")
#: how far a loss may be from the recorded one, after so many steps: rounding grows with each
FAR = {1: 1e-5, 10: 1e-3, 25: 1e-2, 50: 5e-2}


def losses(recipe):
    """The training losses of a recipe after the steps of ``FAR``."""
    options = ["--trainer.log_every_n_steps=1", "--trainer.limit_val_batches=0"]
    overrides = ["--trainer.accelerator=cpu", "--trainer.max_steps=50", *options]
    # the digits of the demo need no files
    data_dir = None if recipe.startswith("demo/") else os.environ["RNNORM_DATA"]
    run = fit(recipe, run_dir="run", data_dir=data_dir, overrides=overrides, quiet=True)
    points = read_metrics(run.folder / "metrics.csv")["train/loss"]
    return {step: points[step - 1].value for step in FAR}


@pytest.mark.parametrize("recipe", yaml.safe_load(RECORDED.read_text(encoding="utf-8")))
def test_a_recorded_recipe_begins_as_it_did(recipe):
    folder = os.environ.get("RNNORM_DATA")
    if recipe.startswith("sentiment/") and not (folder and (Path(folder) / "sentiment").is_dir()):
        pytest.skip("RNNORM_DATA does not name a folder with sentiment/")
    recorded = yaml.safe_load(RECORDED.read_text(encoding="utf-8"))[recipe]
    for step, loss in losses(recipe).items():
        assert loss == pytest.approx(recorded[step], rel=FAR[step]), step
