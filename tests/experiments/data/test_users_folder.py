import pytest

from rnnorm.experiments.data.users_folder import users_folder


def test_the_home_may_be_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert users_folder("~/data", "it") == tmp_path / "data"
    assert users_folder(tmp_path, "it") == tmp_path


def test_without_a_folder_the_error_says_what_it_must_hold():
    with pytest.raises(FileNotFoundError, match=r"the folder that holds a\.txt with --data-dir"):
        users_folder(None, "a.txt")
