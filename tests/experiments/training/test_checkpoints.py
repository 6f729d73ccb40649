import errno
import os
import stat
from pathlib import Path

import pytest
import torch

from rnnorm.experiments.training import checkpoints
from rnnorm.experiments.training.checkpoints import (
    KeepLastAndBest,
    WholeFiles,
    read_checkpoint,
    write_whole,
)
from rnnorm.experiments.training.fit import fit
from rnnorm.experiments.training.score import Score


class FullDisk:
    """A file that takes half of the data and then finds the disk full."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.file.write(bytes(data)[: len(data) // 2])
        self.file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch):
    """Call it with a number: writes of checkpoints fail after so many."""
    left = [None]
    real = Path.open

    def opened(path, mode="r", *args, **kwargs):
        file = real(path, mode, *args, **kwargs)
        if not path.name.endswith(".ckpt.partial") or left[0] is None:
            return file
        left[0] -= 1
        return FullDisk(file) if left[0] < 0 else file

    monkeypatch.setattr(Path, "open", opened)
    return lambda writes: left.__setitem__(0, writes)


def test_the_previous_checkpoint_survives_a_full_disk(tmp_path, full_disk):
    path = tmp_path / "deep" / "last.ckpt"
    WholeFiles().save_checkpoint({"state_dict": {"a": torch.ones(100)}}, path)
    before = path.read_bytes()
    full_disk(0)
    with pytest.raises(OSError, match="the checkpoint before it is whole") as error:
        WholeFiles().save_checkpoint({"state_dict": {"a": torch.zeros(100)}}, path)
    assert error.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["last.ckpt"]


def test_training_stops_on_a_full_disk_and_goes_on_later(tmp_path, tiny, full_disk):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    full_disk(3)
    with pytest.raises(OSError, match="No space left"):
        fit("demo/digits-bn", run_dir=folder, overrides=tiny, every_n_steps=2)
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == 6
    assert not list((folder / "checkpoints").glob("*.partial"))
    full_disk(None)
    fit(resume=folder)
    fit("demo/digits-bn", run_dir=whole, overrides=tiny)
    one, two = (read_checkpoint(f / "checkpoints/last.ckpt")["state_dict"] for f in (folder, whole))
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_a_kill_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    write_whole(path, b"old")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"


def test_the_folder_is_flushed_after_the_file_has_its_name(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(descriptor):
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        flushed.append(("folder" if folder else "file", sorted(os.listdir(tmp_path / "new"))))
        real(descriptor)

    (tmp_path / "new").mkdir()
    monkeypatch.setattr(checkpoints.os, "fsync", fsync)
    write_whole(tmp_path / "new" / "last.ckpt", b"new")
    assert flushed == [("file", ["last.ckpt.partial"]), ("folder", ["last.ckpt"])]


class Validated:
    """A trainer after an epoch whose validation gave this accuracy."""

    is_last_batch = False

    def __init__(self, epoch, accuracy):
        self.current_epoch, self.callback_metrics = epoch, {"val/accuracy": accuracy}

    def save_checkpoint(self, path):
        path.touch()


def test_nan_is_never_the_best(tmp_path):
    keep = KeepLastAndBest(tmp_path, Score("accuracy", "max"))
    keep.on_train_epoch_end(Validated(0, float("nan")), None)
    assert keep.best is None
    assert not keep.best_path.exists()
    keep.on_train_epoch_end(Validated(1, 0.25), None)
    keep.on_train_epoch_end(Validated(2, float("inf")), None)
    assert (keep.best, keep.best_epoch) == (0.25, 2)


def test_a_left_over_partial_file_does_no_harm(tmp_path):
    Path("last.ckpt.partial").write_bytes(b"half")
    write_whole(Path("last.ckpt"), b"new")
    assert Path("last.ckpt").read_bytes() == b"new"
    assert os.listdir() == ["last.ckpt"]


@pytest.mark.parametrize("size", [0, 10, 500])
def test_a_broken_checkpoint_is_refused_by_name(tmp_path, size):
    path = tmp_path / "last.ckpt"
    WholeFiles().save_checkpoint({"state_dict": {"a": torch.ones(100)}}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"last\.ckpt is no whole checkpoint"):
        read_checkpoint(path)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    torch.save([1, 2], tmp_path / "list.ckpt")
    with pytest.raises(ValueError, match="no checkpoint of a training"):
        read_checkpoint(tmp_path / "list.ckpt")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "none.ckpt")


def test_a_checkpoint_with_code_in_it_is_not_run(tmp_path):
    class Bad:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    torch.save({"state_dict": {}, "x": Bad()}, tmp_path / "bad.ckpt")
    with pytest.raises(ValueError, match="no whole checkpoint"):
        read_checkpoint(tmp_path / "bad.ckpt")
    assert not (tmp_path / "harm").exists()
