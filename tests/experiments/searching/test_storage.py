import pytest

from rnnorm.experiments.searching.storage import open_storage


def test_an_error_of_a_training_is_none_of_the_journals(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"^lacks train-images$"),
        open_storage(f"journal:{tmp_path}/study.journal"),
    ):
        raise FileNotFoundError("lacks train-images")
