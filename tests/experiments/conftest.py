import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning", reason="needs the extra 'experiments'")


# of modules, so that it comes before the trainings that a module's tests share
@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _unflushed():
    """Nothing is flushed to the disk, which may take longer than a training."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Whatever a test writes to a relative path goes into its own folder."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def tiny():
    """Overrides that make a digits recipe a training of 3 epochs of 7 steps."""
    return [
        "--trainer.max_epochs=3",
        "--trainer.accelerator=cpu",
        "--model.init_args.hidden_size=8",
        "--data.init_args.shrink=2",
        "--data.init_args.train_size=130",
        "--data.init_args.batch_size=20",
    ]


@pytest.fixture(scope="session")
def mnist_dir():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "mnist").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with mnist/")
    return Path(folder)


@pytest.fixture(scope="session")
def ptb_dir():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "ptb").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with ptb/")
    return Path(folder)


@pytest.fixture(scope="session")
def speech_dir():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "fsdd").is_dir() or not (Path(folder) / "kaldi").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with fsdd/ and kaldi/")
    return Path(folder)


@pytest.fixture(scope="session")
def kaldi_dir(speech_dir):
    return speech_dir / "kaldi"


@pytest.fixture
def sentences(tmp_path):
    """A folder with texts in the published layouts of the Penn Treebank, words and characters."""
    return _write_sentences(tmp_path / "texts")


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """The same, for tests that leave it as it is."""
    return _write_sentences(tmp_path_factory.mktemp("published") / "texts")


def _write_sentences(folder):
    folder.mkdir()
    lines = ["the cat sat on the mat", "a <unk> cat ran N miles", "on the mat a cat sat"]
    for part, count in (("train", 60), ("valid", 12), ("test", 12)):
        text = "".join(f" {lines[i * i % 3]} \n" for i in range(count))
        (folder / f"ptb.{part}.txt").write_text(text)
        symbols = text.replace(" \n", "\n").replace("\n ", "\n").strip(" ").replace(" ", "_")
        (folder / f"ptb.char.{part}.txt").write_text(" ".join(symbols) + " ")
    return folder
