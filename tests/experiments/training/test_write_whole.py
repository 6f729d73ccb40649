import errno
import os
import stat
from pathlib import Path

import pytest

from rnnorm.experiments.writing import partial_of, write_whole


def test_a_kill_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    write_whole(path, b"old")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
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
    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "new" / "last.ckpt", b"new")
    (first, (partial,)), second = flushed
    assert first == "file"
    assert partial.endswith(".partial")
    assert second == ("folder", ["last.ckpt"])


def test_an_error_names_the_file_and_not_the_partial_one(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_whole(path, b"new")
    assert caught.value.filename == str(path)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(tmp_path / "last.ckpt", b"new")
    assert caught.value.filename == str(tmp_path / "last.ckpt")
    assert not list(tmp_path.glob("last.ckpt*"))


def test_partial_files_have_names_of_their_own():
    path = Path("last.ckpt")
    assert len({partial_of(path) for _ in range(100)}) == 100


def test_what_a_kill_left_behind_is_removed_and_what_another_process_writes_is_not():
    path, writing, stale = (
        Path("last.ckpt"),
        partial_of(Path("last.ckpt")),
        Path("last.ckpt.0.partial"),
    )
    other = Path("last.ckpt-2.0.partial")
    for left in (writing, stale, other):
        left.write_bytes(b"half")
    for left in (stale, other):
        os.utime(left, (0, 0))
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert set(os.listdir()) == {path.name, writing.name, other.name}


def test_the_file_before_is_kept_where_asked(tmp_path):
    path, before = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for number in (b"1", b"2", b"3"):
        write_whole(path, number, keep=before)
    assert (path.read_bytes(), before.read_bytes()) == (b"3", b"2")
