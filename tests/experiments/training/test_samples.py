"""The samples that ``rnnorm fit --samples`` writes after each epoch."""

import json
import re

import pytest
import torch
from interruption import Interruption, KillAt, assert_resumes_alike
from parallel_files import write_multi30k

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.data.text.corpora import load_corpus
from rnnorm.experiments.trained.text import write
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.fit import fit

SENTENCES = "glinskis2017/separate"
WORDS = "laurent2015/ptb-word-small-bn"
CHARACTERS = "krueger2016/ptb-char-zoneout-bn"


ALWAYS = ["--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1"]


def options(recipe, folder):
    """Overrides of a training of 2 epochs; of characters with masks drawn at every step."""
    size = len(load_corpus("ptb-word" if "word" in recipe else "ptb-char", folder).vocabulary)
    return [
        *ALWAYS,
        "--trainer.max_epochs=2",
        f"--model.vocabulary_size={size}",
        "--model.hidden_size=8",
        "--data.batch_size=20",
        *(["--data.length=7"] if recipe in (WORDS, CHARACTERS) else []),
    ]


def samples(folder):
    """The epochs of the samples, and the texts of each."""
    found = {}
    for line in (folder / "samples.txt").read_text("utf-8").splitlines():
        at, text = re.fullmatch(r"epoch (\d+), \d+ steps?: (.*)", line).groups()
        found.setdefault(int(at), []).append(text)
    return found


@pytest.mark.parametrize("recipe", [SENTENCES, WORDS])
def test_the_last_samples_are_what_the_last_checkpoint_writes(published, recipe, capsys):
    overrides = options(recipe, published)
    run = fit(recipe, data_dir=published, samples=2, overrides=overrides)
    found = samples(run.folder)
    assert list(found) == [1, 2]
    last = run.folder / "checkpoints" / "last.ckpt"
    assert found[2] == write(run.folder, last, sentences=2)
    assert found[1] != found[2]
    out = capsys.readouterr().out
    for line in (run.folder / "samples.txt").read_text("utf-8").splitlines():
        assert f"\n{line}\n" in out


@pytest.mark.parametrize("recipe", ["glinskis2017/baseline", SENTENCES, CHARACTERS])
def test_samples_leave_the_training_as_it_is(published, recipe):
    ends = []
    for count in (0, 3):
        where = f"run-{count}"
        fit(
            recipe,
            data_dir=published,
            run_dir=where,
            samples=count,
            overrides=options(recipe, published),
            quiet=True,
        )
        ends.append(read_checkpoint(f"{where}/checkpoints/last.ckpt"))
    without, with_samples = ends
    for name, value in without["state_dict"].items():
        assert torch.equal(with_samples["state_dict"][name], value), name
    own, others = (end["callbacks"] for end in ends)
    assert torch.equal(own["RandomState"]["torch"], others["RandomState"]["torch"])
    # also the kernels that ran
    assert own["Places"] == others["Places"]


def test_a_resumed_training_has_the_samples_of_an_uninterrupted_one(published, tmp_path):
    own = {"samples": 2, "overrides": options(SENTENCES, published), "quiet": True}
    # epochs of 3 steps: within the first, before its end, and within the second
    assert_resumes_alike(tmp_path, SENTENCES, [1, 3, 5], data_dir=published, **own)
    whole = (tmp_path / "whole" / "samples.txt").read_bytes()
    for step in (1, 3, 5):
        assert (tmp_path / f"cut-{step}" / "samples.txt").read_bytes() == whole


def test_samples_of_later_steps_are_dropped(published):
    own = {"data_dir": published, "samples": 1, "quiet": True}
    with pytest.raises(Interruption):
        fit(
            SENTENCES,
            run_dir="run",
            callbacks=[KillAt(4)],
            overrides=options(SENTENCES, published),
            **own,
        )
    fit(SENTENCES, run_dir="whole", overrides=options(SENTENCES, published), **own)
    with open("run/samples.txt", "a", encoding="utf-8") as file:
        file.write("epoch 2, 6 steps: a text\nepo")
    fit(resume="run", quiet=True)
    with open("run/samples.txt") as file, open("whole/samples.txt") as whole:
        assert file.read() == whole.read()


def test_a_resumed_training_may_write_another_number(published):
    own = options(SENTENCES, published)
    fit(SENTENCES, data_dir=published, run_dir="run", samples=1, overrides=own, quiet=True)
    run = fit(resume="run", samples=3, epochs=3, quiet=True)
    assert [len(texts) for texts in samples(run.folder).values()] == [1, 1, 3]
    run = fit(resume="run", epochs=4, quiet=True)
    assert len(samples(run.folder)[4]) == 3
    fit(resume="run", samples=0, epochs=5, quiet=True)
    run = fit(resume="run", epochs=6, quiet=True)
    assert list(samples(run.folder)) == [1, 2, 3, 4]


def test_a_text_without_the_word_begins_as_its_validation_part(tmp_path):
    file = tmp_path / "text"
    file.write_text("ba ca\nab\n" * 40)
    overrides = [*ALWAYS, "--model.vocabulary_size=5", "--model.hidden_size=4"]
    overrides += ["--data.batch_size=20", "--data.dataset=text", f"--data.file={file}"]
    overrides += ["--data.length=3"]
    run = fit(CHARACTERS, samples=2, epochs=1, overrides=overrides, quiet=True)
    corpus = load_corpus("text", None, file)
    first = corpus.vocabulary.symbols[int(corpus.val.symbols[0])]
    assert first == "b"
    assert [text[0] for text in samples(run.folder)[1]] == [first, first]


def test_a_translator_translates_the_first_validation_sentences(tmp_path):
    folder = write_multi30k(tmp_path / "multi30k")
    overrides = [
        *ALWAYS,
        "--model.source_size=8",
        "--model.target_size=8",
        "--model.embedding_size=4",
        "--model.hidden_size=4",
        "--data.words=6",
        "--data.train_size=60",
    ]
    name = "translation/multi30k-lstm"
    run = fit(name, data_dir=folder, samples=3, epochs=1, overrides=overrides, quiet=True)
    ((*texts,),) = samples(run.folder).values()
    lines = (folder / "val.lc.norm.tok.de").read_text().splitlines()
    assert [text.partition(" → ")[0] for text in texts] == lines[:3]


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        ("demo/digits-bn", "PixelClassifier writes nothing: leave samples (--samples) out"),
        (
            "handwriting/kanji-lstm",
            "Writer draws: write RUN --out PICTURE: leave samples (--samples) out",
        ),
        ("transcription/yesno-lstm", "Transcriber transcribes recordings: write RUN WAV"),
    ],
)
def test_a_task_without_texts_has_no_samples(recipe, what, capsys, tmp_path):
    assert main(["fit", recipe, "--samples", "2", "--run-dir", str(tmp_path / "run")]) == 1
    assert what in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_number_below_0_and_a_broken_run_json_are_refused(published):
    with pytest.raises(ValueError, match=r"^samples must be at least 0, got -1"):
        fit(SENTENCES, samples=-1)
    own = options(SENTENCES, published)
    run = fit(SENTENCES, data_dir=published, run_dir="run", samples=1, overrides=own, quiet=True)
    path = run.folder / "run.json"
    about = json.loads(path.read_text())
    assert about["samples"] == 1
    path.write_text(json.dumps(about | {"samples": "many"}))
    with pytest.raises(ValueError, match='samples must be a number of at least 0, got "many"'):
        fit(resume="run")
