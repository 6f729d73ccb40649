"""Two processes train what one does."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from rnnorm.experiments.data.batches import rows_of
from rnnorm.experiments.data.text.windows import Window
from rnnorm.experiments.models.classifiers import SequenceClassifier
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import read_metrics

pytestmark = pytest.mark.slow

RECIPE = "demo/digits-bn"
FLOAT64 = ["--trainer.precision=64-true", "--model.init_args.initial_noise=0"]
CLI = "rnnorm.experiments.commands.cli"


def command(*words, before=("-m", CLI), **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *before, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=540,
    )


def weights(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]


def assert_near(got, want, tolerance):
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, atol=tolerance, rtol=tolerance, msg=name)


TRAIN = """
import os, signal
from lightning.pytorch import Callback
from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.training.fit import fit
class Stop(Callback):
    def on_before_zero_grad(self, trainer, *_):
        if trainer.global_step == 9 and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
assert main({words!r}) == 0
fit({recipe!r}, run_dir={folder!r}, overrides={more!r}, quiet=True, callbacks=[Stop()])
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training of two processes, and of one."""
    folder = tmp_path_factory.mktemp("processes")
    options = [
        "--trainer.max_epochs=2",
        "--trainer.accelerator=cpu",
        "--model.init_args.hidden_size=8",
        "--data.init_args.shrink=2",
        "--data.init_args.train_size=129",
        "--data.init_args.batch_size=20",
        *FLOAT64,
    ]
    fit(RECIPE, run_dir=folder / "one", overrides=options, quiet=True)
    script = folder / "train.py"
    more = [*options, "--trainer.devices=2"]
    words = ["fit", RECIPE, "--run-dir", str(folder / "two"), *more]
    cut = str(folder / "cut")
    script.write_text(TRAIN.format(words=words, recipe=RECIPE, folder=cut, more=more))
    # one pair of processes for both, since importing takes longer than training
    two = command(script, before=())
    assert two.returncode == 128 + signal.SIGTERM, two.stdout + two.stderr
    return folder, two


def test_two_processes_give_the_weights_of_one(trained):
    folder, _ = trained
    assert_near(weights(folder / "two"), weights(folder / "one"), 1e-9)


def test_one_process_writes_the_metrics_of_all(trained):
    folder, two = trained
    want, got = (read_metrics(folder / name / "metrics.csv") for name in ("one", "two"))
    assert got.keys() == want.keys()
    for name, curve in want.items():
        assert [point.step for point in got[name]] == [point.step for point in curve], name
        values = [torch.tensor([point.value for point in of[name]]) for of in (got, want)]
        torch.testing.assert_close(*values, atol=1e-6, rtol=1e-6, msg=name)
    assert two.stdout.count("run folder:") == 1
    assert two.stdout.count("next: rnnorm test") == 1


def test_a_signal_to_one_stops_all_and_the_resumed_training_is_the_uninterrupted_one(trained):
    whole, two = trained
    folder = whole / "cut"
    assert two.stdout.count("stopped.") == 1
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == 10
    with pytest.raises(ValueError, match="of a training with 2 processes, and this has 1"):
        fit(resume=folder, overrides=["--trainer.devices=1"], quiet=True)

    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", CLI)
    done = command("fit", "--resume", folder, before=torchrun)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, value in weights(whole / "two").items():
        assert torch.equal(weights(folder)[name], value), name


def test_a_minibatch_is_split_by_rows():
    x, lengths = torch.arange(30).view(2, 5, 3), torch.arange(5)
    batch = Window(x, x, fresh=True, kept=False, step=0, lengths=lengths)
    parts = [rows_of(batch, k, 2) for k in range(2)]
    assert [part.lengths.tolist() for part in parts] == [[0, 2, 4], [1, 3]]
    assert torch.equal(parts[1].x, x[:, [1, 3]])
    assert parts[0].fresh
    with pytest.raises(ValueError, match="5 rows is too small for 6"):
        rows_of(batch, 0, 6)


def test_a_model_that_does_not_weigh_its_loss_is_refused(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(SequenceClassifier, "in_processes", False)
    with pytest.raises(ValueError, match="devices must be 1 for PixelClassifier, got 2"):
        fit(RECIPE, run_dir=tmp_path / "run", overrides=[*tiny, "--trainer.devices=2"], quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_another_strategy_is_refused(tmp_path, tiny, strategy):
    options = [*tiny, "--trainer.devices=2", f"--trainer.strategy={strategy}"]
    with pytest.raises(ValueError, match=f"must be ddp .*, got {strategy}"):
        fit(RECIPE, run_dir=tmp_path / "run", overrides=options, quiet=True)
    assert not (tmp_path / "run").exists()
