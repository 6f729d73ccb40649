"""Speech recipes from end to end, on a few tones."""

import re

import numpy as np
import pytest
import torch
from interruption import assert_resumes_alike
from kaldi_files import write_features, write_states
from spoken import STATES, write_spoken

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.comparing.compare import compare
from rnnorm.experiments.models.measures import SamplingError
from rnnorm.experiments.reporting.report import report
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.metrics import read_metrics

DIGITS = [f"laurent2015/digits-{name}" for name in ("lstm", "bn", "bn-frame", "both-bn")]
BN = DIGITS[1]
TINY = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=3",
    "--trainer.log_every_n_steps=1",
    f"--model.init_args.num_classes={STATES}",
    "--model.init_args.hidden_size=6",
    "--model.init_args.num_layers=2",
    "--data.init_args.batch_size=5",
    "--optimizer.init_args.lr=0.003",
]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spoken")
    write_spoken(folder)
    return folder


@pytest.fixture
def kaldi(tmp_path):
    """Features of a width of their own, in Kaldi's layout."""
    random = np.random.RandomState(0)
    for part, count in (("train", 12), ("dev", 4), ("test", 4)):
        lengths = {f"{part}{i}": 4 + i for i in range(count)}
        features = {n: random.randn(frames, 3).astype(np.float32) for n, frames in lengths.items()}
        states = {n: np.int32(features[n][:, 0] > 0) for n in features}
        write_features(tmp_path / "kaldi" / part, features)
        write_states(tmp_path / "kaldi" / part, states)
    return tmp_path / "kaldi"


@pytest.mark.parametrize("name", DIGITS)
def test_the_recipes_learn(tmp_path, spoken, name):
    more = ["--trainer.max_epochs=12", "--optimizer.init_args.lr=0.01"]
    run = fit(name, data_dir=spoken, run_dir=tmp_path / "run", overrides=[*TINY, *more])
    curve = [point.value for point in read_metrics(run.folder / "metrics.csv")["val/frame_error"]]
    assert len(curve) == 12
    assert run.best == pytest.approx(min(curve))
    # six states: guessing is wrong in five of six frames
    assert run.best < 0.5


def test_the_score_is_that_of_all_frames(tmp_path, spoken, capsys):
    rows = ["--data.init_args.eval_batch_size=4"]
    run = fit(BN, data_dir=spoken, run_dir=tmp_path / "run", overrides=[*TINY, *rows])
    (population, batch) = measure(BN, run.best_checkpoint)
    assert (population.statistics, batch.statistics) == ("population", "batch")
    model, data = run.experiment.model, run.experiment.datamodule
    model.load_state_dict(read_checkpoint(run.best_checkpoint)["state_dict"])
    model.eval()
    losses, wrong, error = [], [], SamplingError()
    for utterances in data.test_dataloader():
        with torch.no_grad():
            scores, _ = model(utterances.x, lengths=utterances.lengths)
        inside = utterances.inside
        losses.append(-scores.log_softmax(2)[inside].gather(1, utterances.y[inside, None]))
        off = scores.argmax(2) != utterances.y
        wrong.append(off[inside])
        for row, frames in enumerate(utterances.lengths):
            error.update(off[:frames, row].sum().reshape(1), frames.reshape(1))
    assert len({len(w) for w in wrong}) > 1
    assert population.metrics["test/loss"] == pytest.approx(float(torch.cat(losses).mean()))
    assert population.metrics["test/frame_error"] == pytest.approx(
        float(torch.cat(wrong).float().mean())
    )
    assert population.metrics["test/sampling_error"] == pytest.approx(float(error.compute()))


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path, spoken):
    assert_resumes_alike(tmp_path, BN, [2], data_dir=spoken, overrides=TINY)


def test_fit_then_test_says_what_was_left_out(spoken, capsys):
    command = ["fit", BN, "--run-dir", "run", "--data-dir", str(spoken), *TINY]
    assert main([*command, "--data.init_args.max_length=10"]) == 0
    said = capsys.readouterr().out
    assert "utterances of more than 10 frames left out" in said
    assert "test: 15 utterances" in said
    assert main(["test", BN, "--ckpt", "run/checkpoints/best.ckpt"]) == 0
    assert "test frame error " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--model.init_args.num_classes=5"], "num_classes must be at least the 6 states"),
        (["--data.init_args.deltas=false"], "input_size must be 41, the features of a frame, got"),
        (["--data.init_args.alignments=nowhere"], "nowhere: name that of the alignments"),
        (["--data.init_args.speaker=eve"], "nicolas, theo, got 'eve'"),
        (["--data.init_args.max_length=2"], "max_length must leave a training utterance"),
    ],
)
def test_a_mistake_leaves_no_run_folder(tmp_path, spoken, capsys, options, what):
    command = ["fit", BN, "--run-dir", "run", "--data-dir", str(spoken), *TINY, *options]
    assert main(command) == 1
    assert what in capsys.readouterr().err
    assert not (tmp_path / "cwd" / "run").exists()


def test_data_are_asked_for(capsys):
    for name in (BN, "laurent2015/wsj-bn"):
        assert main(["fit", name]) == 1
        assert "--data-dir" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["laurent2015/wsj-lstm", "laurent2015/wsj-bn"])
def test_kaldi_features_of_ones_own(tmp_path, kaldi, name):
    sizes = ["--model.init_args.num_classes=2", "--model.init_args.input_size=9"]
    given = {"data_dir": kaldi, "overrides": [*TINY, *sizes]}
    run = fit(name, run_dir=tmp_path / "run", **given)
    assert run.trainer.global_step == 9
    assert measure(name, run.best_checkpoint)[0].metrics["test/frame_error"] <= 1


def test_a_value_that_is_not_finite_stops_the_training_by_name(tmp_path, kaldi, capsys):
    features = {f"train{i}": np.ones((4 + i, 3), np.float32) for i in range(12)}
    features["train5"][2, 1] = np.nan
    write_features(kaldi / "train", features)
    sizes = ["--model.init_args.num_classes=2", "--model.init_args.input_size=9"]
    command = ["fit", "laurent2015/wsj-bn", "--data-dir", str(kaldi), *TINY, *sizes]
    assert main(command) == 1
    assert "has nan in row 2, column 1" in capsys.readouterr().err


def test_a_report_has_the_posteriors(tmp_path, spoken):
    runs = []
    for name in DIGITS[:2]:
        runs.append(tmp_path / name.replace("/", "-"))
        fit(name, data_dir=spoken, run_dir=runs[-1], overrides=TINY)
    page = report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<b>[^<]*Posteriors of nicolas_", page)) == 2
    assert "frame error, %" in page
    # a bidirectional layer has no single h_t
    assert "must not be bidirectional" in page


def test_recipes_are_compared_in_per_cent(tmp_path, spoken, capsys):
    options = [option for option in TINY if "max_epochs" not in option]
    given = {"data_dir": spoken, "overrides": options, "epochs": 2}
    curves = compare(DIGITS[:2], tmp_path / "out", **given)
    assert max(value for curve in curves for value in curve.values) > 1
    assert "validation frame error, %" in capsys.readouterr().out


def test_the_real_digits_with_a_tiny_budget(tmp_path, speech_dir):
    tiny = ["--trainer.accelerator=cpu", "--trainer.max_epochs=2", "--optimizer.init_args.lr=0.003"]
    small = ["--model.init_args.hidden_size=16", "--model.init_args.num_layers=1"]
    run = fit(BN, data_dir=speech_dir, run_dir=tmp_path / "run", overrides=[*tiny, *small])
    assert run.best is not None
    assert run.best < 0.8
