import pytest

from rnnorm.experiments.data.users_folder import users_file, users_folder


def test_the_home_may_be_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_folder("~/data", "it") == tmp_path / "data"
    assert users_folder(tmp_path, "it") == tmp_path


def test_without_a_folder_the_error_says_what_it_must_hold():
    with pytest.raises(FileNotFoundError, match=r"the folder that holds a\.txt with --data-dir"):
        users_folder(None, "a.txt")


def test_a_file_of_ones_own_is_relative_to_the_folder_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_file("~/data", "a.txt") == tmp_path / "data" / "a.txt"
    assert users_file("data", "~/a.txt") == tmp_path / "a.txt"
    assert str(users_file(None, "a.txt")) == "a.txt"
