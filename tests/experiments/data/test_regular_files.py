"""A pipe or a device in the place of any file is refused at once, by its name."""

import os
import sys

import pytest

from rnnorm.experiments.data.images import SHA256, load_images
from rnnorm.experiments.data.kaldi.alignments import read_alignments
from rnnorm.experiments.data.kaldi.archive import read_scp
from rnnorm.experiments.data.kaldi.folder import list_features
from rnnorm.experiments.data.questions.babi import read_babi
from rnnorm.experiments.data.questions.cnn import read_cnn_part
from rnnorm.experiments.data.speech.recordings import read_recording, read_recordings
from rnnorm.experiments.data.strokes.corpora import load_kanjivg, read_iam
from rnnorm.experiments.data.text.corpora import load_corpus
from rnnorm.experiments.data.text.rated import load_rated
from rnnorm.experiments.recipe.recipe import read_config, read_recipe
from rnnorm.experiments.searching.storage import open_storage
from rnnorm.experiments.searching.study import read_search
from rnnorm.experiments.trained.measurement import read_measurements
from rnnorm.experiments.training.checkpoint import read_checkpoint
from rnnorm.experiments.training.folder import read_about
from rnnorm.experiments.training.metrics import read_metrics
from rnnorm.experiments.training.run_names import checkpoint_of
from tools.results.recorded import read_recorded
from tools.results.step_times import read_steps


def read_storage(url):
    with open_storage(url) as storage:
        storage.get_all_studies()


def of_scp(folder):
    (folder / "feats.scp").write_text("one a.ark:7\n")
    read_scp(folder / "feats.scp")


def of_run(folder):
    (folder / "run.json").touch()
    read_checkpoint(checkpoint_of(folder))


def of_mnist(folder):
    for name in SHA256:
        if not (folder / name).exists():
            (folder / name).touch()
    load_images("mnist", folder)


#: the special file's name, and what opens it
PLACES = {
    "text8": lambda folder: load_corpus("text8", folder),
    "own.txt": lambda folder: load_corpus("text", folder, "own.txt"),
    "own.csv": lambda folder: load_rated("csv", folder, "own.csv"),
    "kanjivg_rdp100.npz": load_kanjivg,
    "train-images-idx3-ubyte.gz": of_mnist,
    "qa1_a_train.txt": lambda folder: list(read_babi(folder, [1], "train")),
    "a.tar.gz": lambda folder: list(read_babi(folder, [1], "train")),
    "a.question": lambda folder: list(read_cnn_part(folder)),
    "feats.scp": lambda folder: list_features(folder, {}),
    "feats.ark": lambda folder: list_features(folder, {}),
    "a.ark": of_scp,
    "pdf.1": read_alignments,
    "a.wav": lambda folder: read_recording(folder / "a.wav", 8000),
    "b.wav": lambda folder: list(read_recordings(folder, ["b.wav"], 8000)),
    "a.xml": lambda folder: read_iam(folder / "a.xml"),
    "metrics.csv": lambda folder: read_metrics(folder / "metrics.csv"),
    "tests.json": read_measurements,
    "run.json": read_about,
    "config.yaml": lambda folder: read_config(folder / "config.yaml"),
    "recipe.yaml": lambda folder: read_recipe(str(folder / "recipe.yaml")),
    "checkpoints/best.ckpt": of_run,
    "checkpoints/last.ckpt": of_run,
    "study.db": read_search,
    "journal": lambda folder: read_storage(f"journal:{folder}/journal"),
    "sqlite": lambda folder: read_storage(f"sqlite:///{folder}/sqlite"),
    "tables.yaml": read_recorded,
    "times.csv": read_steps,
}


@pytest.mark.skipif(sys.platform == "win32", reason="has no such files")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_file_is_refused_at_once(tmp_path, name, kind):
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=f"{path} is a {kind}, not a file"):
        PLACES[name](tmp_path / "data")
