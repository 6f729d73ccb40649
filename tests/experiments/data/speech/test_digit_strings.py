import shutil

import numpy as np
import pytest
from digit_recordings import SPEAKER, write_recordings

from rnnorm.experiments.data.speech.spoken_digits import WORDS, load_digit_strings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_recordings(tmp_path_factory.mktemp("digits"))


def test_strings_have_three_to_seven_digits_and_are_always_the_same(folder):
    one, two = (load_digit_strings(folder, 30, [SPEAKER]) for _ in range(2))
    assert [len(part) for part in one[:3]] == [30, 3, 3]
    for a, b in zip(one.train, two.train, strict=True):
        assert 3 <= len(a.symbols) <= 7
        assert a.symbols == b.symbols
        assert a.read().shape == (a.frames, one.num_features)
        np.testing.assert_array_equal(a.read(), b.read())
    assert {symbol for each in one.train for symbol in each.symbols} == set(WORDS)


def test_more_strings_begin_with_the_same(folder):
    few, more = (load_digit_strings(folder, n, [SPEAKER]) for n in (20, 40))
    assert [u.symbols for u in few.train] == [u.symbols for u in more.train[:20]]
    assert [u.symbols for u in few.test] == [u.symbols for u in more.test[:2]]


def test_a_recording_is_in_one_part(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    parts = load_digit_strings(folder, 30, [SPEAKER])
    for index, changed in ((20, "train"), (7, "val"), (2, "test")):
        for digit in range(10):
            path = tmp_path / "recordings" / f"{digit}_{SPEAKER}_{index}.wav"
            path.write_bytes((folder / f"recordings/0_{SPEAKER}_{index}.wav").read_bytes())
        other = load_digit_strings(tmp_path, 30, [SPEAKER])
        for part in ("train", "val", "test"):
            pairs = zip(getattr(parts, part), getattr(other, part), strict=True)
            same = all(np.array_equal(a.read(), b.read()) for a, b in pairs)
            assert same == (part != changed)
        parts = other


def test_speakers_of_the_test_may_be_others(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for path in (folder / "recordings").iterdir():
        name = path.name.replace(SPEAKER, "ann")
        (tmp_path / "recordings" / name).write_bytes(path.read_bytes())
    parts = load_digit_strings(tmp_path, 20, [SPEAKER], ["ann"])
    said = [{each.name.rpartition("-")[2] for each in part} for part in parts[:3]]
    assert said == [{SPEAKER}, {SPEAKER}, {"ann"}]
    with pytest.raises(
        ValueError, match="test_speakers must be none of speakers, got theo in both"
    ):
        load_digit_strings(tmp_path, 20, [SPEAKER], [SPEAKER])


def test_a_missing_recording_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lacks 500 of 1000 .* 0_ann_0\.wav"):
        load_digit_strings(folder, 3, [SPEAKER, "ann"])
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load_digit_strings(None, 3)
    with pytest.raises(FileNotFoundError, match="holds no recordings"):
        load_digit_strings(tmp_path, 3)
