from pathlib import PurePath

import pytest

from rnnorm.experiments.files import (
    added_by_system,
    files_below,
    inner_folder,
    users_file,
    users_folder,
)
from rnnorm.experiments.writing import refuse_file


def test_the_home_may_be_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_folder("~/data", "it") == tmp_path / "data"
    assert users_folder(tmp_path, "it") == tmp_path


def test_without_a_folder_the_error_says_what_it_must_hold():
    with pytest.raises(FileNotFoundError, match=r"the folder that holds a\.txt with --data-dir"):
        users_folder(None, "a.txt")


def test_a_file_is_refused_where_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"--data-dir .*file is a file: name .* with it"):
        users_folder(tmp_path / "file", "it")
    with pytest.raises(NotADirectoryError, match="file is not a folder: it is a file"):
        refuse_file(tmp_path / "file" / "inner" / "run")
    refuse_file(tmp_path / "folder" / "run")


def test_a_file_of_ones_own_is_relative_to_the_folder_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_file("~/data", "a.txt") == tmp_path / "data" / "a.txt"
    assert users_file("data", "~/a.txt") == tmp_path / "a.txt"
    assert str(users_file(None, "a.txt")) == "a.txt"


@pytest.mark.parametrize(
    "name",
    [
        "._a.xml",
        "d/._a",
        "__MACOSX/a",
        "d/.DS_Store",
        "Thumbs.db",
        "d/desktop.ini",
        ".git/a",
        "Icon\r",
    ],
)
def test_what_systems_add_is_no_data(name):
    assert added_by_system(PurePath(name))


@pytest.mark.parametrize("name", ["a.xml", "./a", "../d/a", "d.e/a_.b", "macosx/a", "thumbs.dbx"])
def test_what_is_data(name):
    assert not added_by_system(PurePath(name))


def test_files_below_a_folder_in_any_case_and_through_links(tmp_path):
    folder, other = tmp_path / "data", tmp_path / "other"
    for path in (folder / "b.XML", folder / "c/a.xml", folder / "c/._a.xml", other / "d.xml"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "a.txt").touch()
    (folder / "e.xml").mkdir()
    (folder / "linked").symlink_to(other)
    (other / "back").symlink_to(folder)
    names = [str(path.relative_to(folder)) for path in files_below(folder, ".xml")]
    assert names == ["b.XML", "c/a.xml", "linked/d.xml"]
    assert files_below(tmp_path / "missing") == []


def test_an_inner_folder_in_any_case(tmp_path):
    (tmp_path / "TimIt").mkdir()
    (tmp_path / "train").touch()
    assert inner_folder(tmp_path, "train", "timit") == tmp_path / "TimIt"
    assert inner_folder(tmp_path, "train") is None
    assert inner_folder(tmp_path / "missing", "train") is None
