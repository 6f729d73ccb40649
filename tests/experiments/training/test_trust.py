import shutil
import sys

import pytest

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.recipe.trust import UntrustedError, trusting
from rnnorm.experiments.training.build import Experiment
from rnnorm.experiments.training.fit import fit

RECIPE = "demo/digits-bn"
# what is imported leaves a file
OWN = """
from collections.abc import Callable
from pathlib import Path
import torch
from lightning.pytorch import Callback

Path(__file__).with_suffix(".imported").touch()

class Own(torch.optim.Adam):
    pass

class Seen(Callback):
    pass

class Unwritten(Callback):
    def __init__(self, call: Callable[[], int] = lambda: 1) -> None:
        pass

def run(*_):
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of somebody else's; returns the file that is there once it was imported."""
    (tmp_path / "strangers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "strangers.imported"
    sys.modules.pop("strangers", None)


def callback(name, **arguments):
    given = ", ".join(f"{key}: {value}" for key, value in arguments.items())
    return f"--trainer.callbacks=[{{class_path: {name}, init_args: {{{given}}}}}]"


POPEN = "{class_path: subprocess.Popen, init_args: {args: [touch, called]}}"
LAMBDA = "lightning.pytorch.callbacks.LambdaCallback"
LAMBDA_LR = "torch.optim.lr_scheduler.LambdaLR"


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--optimizer=strangers.Own", "strangers.Own"),
        ("--optimizer.class_path=strangers.Own", "strangers.Own"),
        ("--lr_scheduler=strangers.Own", "strangers.Own"),
        ("--model=strangers.Own", "strangers.Own"),
        ("--data=strangers.Own", "strangers.Own"),
        ("--model.help=strangers.Own", "strangers.Own"),
        ("--trainer.callbacks=strangers.Seen", "strangers.Seen"),
        ("--trainer.callbacks+=strangers.Seen", "strangers.Seen"),
        (callback("strangers.Seen"), "strangers.Seen"),
        ("--trainer.plugins=[strangers.Seen]", "strangers.Seen"),
        ("--trainer.profiler={class_path: strangers.Seen}", "strangers.Seen"),
        ("--trainer.strategy={class_path: strangers.Seen}", "strangers.Seen"),
        ("--optimizer=torchlike.Own", "torchlike.Own"),
        # what is reached through torch, defined there for something else, or no class
        ("--optimizer=torch.os.system", "torch.os.system"),
        ("--optimizer=torch.hub.load", "torch.hub.load"),
        ("--optimizer=torch.nn.Linear", "torch.nn.Linear"),
        (callback("rnnorm.experiments.training.fit.shutil.rmtree"), "rnnorm.*rmtree"),
        (callback(LAMBDA, setup="strangers.run"), "strangers.run"),
        (callback(LAMBDA, setup="torch.hub.load"), "torch.hub.load"),
        (callback(LAMBDA, setup=POPEN), "subprocess.Popen"),
        (
            f"--lr_scheduler={{class_path: {LAMBDA_LR}, init_args: {{lr_lambda: strangers.run}}}}",
            "strangers.run",
        ),
        # an argument of any type
        (f"--model.norm_options.eps={POPEN}", "subprocess.Popen"),
    ],
)
def test_code_of_others_is_refused_before_it_is_imported(own, option, named):
    with pytest.raises(UntrustedError, match=f"^{named} is no .*--trust"):
        Experiment(read_recipe(RECIPE).config, [option])
    assert not own.exists()
    assert "strangers" not in sys.modules


@pytest.mark.parametrize(
    "option",
    [
        "--optimizer=SGD",
        callback("EMAWeightAveraging", decay=0.9),
        "--trainer.plugins=[lightning.pytorch.plugins.io.TorchCheckpointIO]",
        "--trainer.profiler={class_path: lightning.pytorch.profilers.SimpleProfiler}",
        "--lr_scheduler={class_path: ReduceLROnPlateau, init_args: {monitor: val/loss}}",
    ],
)
def test_classes_of_torch_and_lightning_need_no_trust(option):
    assert Experiment(read_recipe(RECIPE).config, [option]).model


def test_a_trusted_class_is_imported(own):
    with trusting():
        experiment = Experiment(read_recipe(RECIPE).config, ["--optimizer=strangers.Own"])
    assert experiment.config["optimizer"]["class_path"] == "strangers.Own"
    assert own.exists()
    with pytest.raises(UntrustedError, match=r"strangers\.Own"):
        Experiment(experiment.as_dict())


def test_every_command_refuses_a_run_of_others_and_takes_it_with_trust(own, tiny, tmp_path, capsys):
    run = tmp_path / "run"
    short = [*tiny, "--trainer.max_epochs=1"]
    with trusting():
        fit(RECIPE, run_dir=run, overrides=[*short, callback("strangers.Seen")], quiet=True)
    sys.modules.pop("strangers")
    own.unlink()
    copy = str(shutil.copytree(run, tmp_path / "copy"))
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        f"base: {RECIPE}\noptimizer: {{class_path: strangers.Own}}\n"
        "search: {trials: 1, space: {seed_everything: {choices: [1]}}}\n"
    )
    for words in (
        ["fit", "--resume", copy],
        ["fit", str(recipe)],
        ["fit", str(recipe), "--help"],
        ["test", copy],
        ["report", copy],
        ["compare", copy, RECIPE],
        ["write", copy],
        ["export", copy, "--format", "pt2", "--out", "out"],
        ["search", str(recipe), "--out", "out"],
        ["bench", str(recipe)],
    ):
        assert main(words) == 1, words
        said = capsys.readouterr().err
        assert "strangers." in said, (words, said)
        assert "--trust" in said, (words, said)
        assert not own.exists(), words
    assert main(["test", copy, "--trust"]) == 0
    assert own.exists()


@pytest.mark.usefixtures("own")
def test_a_value_that_would_not_read_back_is_refused(tmp_path):
    option = "--trainer.callbacks+=strangers.Unwritten"
    with (
        trusting(),
        pytest.raises(ValueError, match=r"config\.yaml cannot hold <function .*lambda"),
    ):
        fit(RECIPE, run_dir=tmp_path / "run", overrides=[option])
    assert not (tmp_path / "run").exists()
