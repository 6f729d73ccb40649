"""Two processes train every task as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from parallel_files import write_multi30k
from question_files import PLACEHOLDERS, write_questions
from spoken import STATES, write_spoken
from stroke_files import write_kanji

from rnnorm.experiments.data.text.corpora import load_corpus
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit

pytestmark = pytest.mark.slow

EVERY = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.limit_train_batches=3",
    "--trainer.limit_val_batches=1",
    "--trainer.precision=64-true",
    "--model.init_args.initial_noise=0",
    "--model.init_args.hidden_size=4",
]
# recipe, then options of the model and of the data
CASES = {
    "frames": (
        "laurent2015/digits-bn-frame",
        {"num_classes": STATES, "num_layers": 1},
        {"batch_size": 5},
    ),
    "language": ("cooijmans2016/ptb-char-bn", {}, {"length": 8, "batch_size": 10}),
    # but for the first window the initial states have no gradient
    "carried": ("chung2016/ptb-char-hm-lstm-step", {}, {"length": 8, "batch_size": 10}),
    "cloze": (
        "cooijmans2016/cnn-bn",
        # of a state that all rows begin with, Adam would make steps of rounding errors
        {
            "embedding_size": 4,
            "vocabulary_size": 7 + PLACEHOLDERS,
            "learn_initial_state": "false",
        },
        {"words": "null", "placeholders": PLACEHOLDERS, "batch_size": 19},
    ),
    "handwriting": ("handwriting/kanji-bn", {"components": 2}, {"batch_size": 9}),
    "transcription": (
        "transcription/yesno-bn",
        {"num_layers": 1, "num_symbols": 2, "input_size": 3},
        {"batch_size": 9, "stacked": 1, "normalised": "false"},
    ),
    "translation": (
        "translation/multi30k-bn",
        {"source_size": 8, "target_size": 8, "embedding_size": 4, "dropout": 0, "limit": 8},
        {"batch_size": 15, "words": 6},
    ),
    # begins with the weights of a training of one process
    "start": ("demo/digits-bn", {}, {"shrink": 4, "train_size": 60, "batch_size": 19}),
}

TEXTS = ("language", "carried")

TRAIN = """
import json, sys
from pathlib import Path
from rnnorm.experiments.training.fit import fit
for name, (recipe, given) in json.loads(Path(sys.argv[1]).read_text()).items():
    given["overrides"].append("--trainer.devices=2")
    fit(recipe, run_dir=Path(sys.argv[1]).parent / "two" / name, quiet=True, **given)
"""


def write_sounds(folder):
    """Utterances of two words, of which a whole minibatch cannot be aligned."""
    kaldi_files = pytest.importorskip("kaldi_files")
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 30), ("dev", 4), ("test", 4)):
        features, lines = {}, []
        for i in range(count):
            words = [("NO", "YES")[(i + k) % 2] for k in range(1 + i % 4)]
            frames = len(words) if i % 3 else 1
            features[f"{part}{i}"] = torch.randn(2 * frames, 3, generator=generator).numpy()
            lines.append(f"{part}{i} {' '.join(words)}\n")
        kaldi_files.write_features(folder / part, features)
        (folder / part / "text").write_text("".join(lines))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, published):
    """Every case, trained by one process and by two."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tasks")
    data = {name: folder / "data" / name for name in CASES}
    data |= dict.fromkeys(TEXTS, published)
    data["frames"].mkdir(parents=True)
    write_spoken(data["frames"], 10)
    write_questions(data["cloze"] / "cnn")
    write_kanji(data["handwriting"] / "handwriting")
    write_sounds(data["transcription"])
    data["translation"].mkdir()
    write_multi30k(data["translation"] / "multi30k", 60)
    symbols = len(load_corpus("ptb-char", published).vocabulary)
    jobs = {}
    for name, (recipe, of_model, of_data) in CASES.items():
        of_model = of_model | ({"vocabulary_size": symbols} if name in TEXTS else {})
        options = [f"--model.init_args.{key}={value}" for key, value in of_model.items()]
        options += [f"--data.init_args.{key}={value}" for key, value in of_data.items()]
        if name == "cloze":
            # symbols that all rows have in one place get rounding errors for a gradient
            options.append("--optimizer.init_args.eps=1e-6")
        given = {"overrides": [*EVERY, *options]}
        if name == "start":
            fit(recipe, run_dir=folder / "before", quiet=True, **given)
            given["start"] = str(folder / "before")
        else:
            given["data_dir"] = str(data[name])
        jobs[name] = recipe, given
        fit(recipe, run_dir=folder / "one" / name, quiet=True, **given)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    (folder / "train.py").write_text(TRAIN)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, folder / "train.py", folder / "jobs.json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=540,
    )
    return folder, done.stdout + done.stderr


def weights(folder: Path):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_weights_of_one(trained, name):
    folder, said = trained
    assert (folder / "two" / name / "checkpoints" / "last.ckpt").exists(), said[-4000:]
    got, want = weights(folder / "two" / name), weights(folder / "one" / name)
    assert got.keys() == want.keys()
    for key, value in want.items():
        torch.testing.assert_close(got[key], value, atol=1e-9, rtol=1e-9, msg=key)
