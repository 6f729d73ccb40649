import gzip
import re

import numpy as np
import pytest
import torch

from rnnorm.experiments.data.series import SeriesBatches, load_series, read_ts, read_uci
from rnnorm.experiments.files import BrokenFileError

HEADER = "#said\n@problemName Two\n@timeStamps false\n@classLabel true up down\n@data\n"


def write_ts(folder, lines, part="TRAIN"):
    path = folder / f"Two_{part}.ts"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path):
    random = np.random.RandomState(0)
    for part, rows in (("TRAIN", 10), ("TEST", 4)):
        lines = []
        for row in range(rows):
            values = random.randn(2, 3 + row % 4) * 5 + 2
            dimensions = [",".join(f"{v:.3f}" for v in d) for d in values]
            lines.append(":".join([*dimensions, ("up", "down")[row % 2]]))
        write_ts(tmp_path, lines, part)
    return tmp_path


def test_a_line_of_a_ts_file_is_a_series(tmp_path):
    x, labels = read_ts(write_ts(tmp_path, ["1,2,3:4,5,6:up", "", "7:8:down"]))
    np.testing.assert_array_equal(x[0], [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(x[1], [[7, 8]])
    assert labels == ["up", "down"]


def test_values_far_from_zero_keep_their_differences(folder):
    near = load_series("Two", folder)
    for path in folder.glob("*.ts"):
        head, data = path.read_text().split("@data\n")
        moved = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]) + 1.6e9:.3f}", data)
        path.write_text(f"{head}@data\n{moved}")
    far = load_series("Two", folder)
    assert far.train.x[0].dtype == torch.float32
    for part in ("train", "val", "test"):
        for one, other in zip(getattr(near, part).x, getattr(far, part).x, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_a_line_of_a_uci_file_is_a_series(tmp_path):
    path = tmp_path / "two.tra.gz"
    path.write_bytes(gzip.compress(b"1, 2, 3, 4, 0\n5,6,7,8,1\n"))
    x, labels = read_uci(path, 2)
    np.testing.assert_array_equal(x[1], [[5, 6], [7, 8]])
    assert labels == ["0", "1"]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["1,2:3:up"], "dimensions of [2, 1] values in line 6"),
        (["1,2:3,4:up", "1,2:up"], "expected 2 dimensions of the same length"),
        (["1,2:3,4:left"], "the class 'left' in line 6, not in its header"),
        (["1,?:3,4:up"], "no number in line 6"),
        (["1,inf:3,4:up"], "not finite in line 6"),
        (["1,1e99:3,4:up"], "not finite in line 6"),
        ([], "no series behind '@data' in line 5"),
    ],
)
def test_a_broken_ts_file_is_refused_with_its_line(tmp_path, lines, what):
    path = write_ts(tmp_path, lines)
    with pytest.raises(BrokenFileError, match=r"Two_TRAIN\.ts") as caught:
        read_ts(path)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1,2,up\n", "no line '@data'"),
        (HEADER.replace("Stamps false", "Stamps true"), "time stamps"),
        (HEADER.replace("@classLabel true", "@classLabel false"), "no classes"),
    ],
)
def test_other_ts_files_are_refused(tmp_path, text, what):
    path = tmp_path / "other.ts"
    path.write_text(text)
    with pytest.raises(BrokenFileError, match=what):
        read_ts(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1,2,3,a\n", "3 values before the class in line 1: expected a multiple of the 2"),
        ("1,2,3,4,a\n1,2,b\n", "2 values before the class in line 2: expected 4, as before"),
        ("1,x,a\n", "no number in line 1"),
        ("\n", "has no series"),
        ("1,2,3,4,a\n1,2,3,4,\n", "no class behind the last comma of line 2"),
    ],
)
def test_a_broken_uci_file_is_refused_with_its_line(tmp_path, text, what):
    path = tmp_path / "two.tra"
    path.write_text(text)
    with pytest.raises(BrokenFileError, match=what):
        read_uci(path, 2)


def test_too_few_series_to_validate_are_refused(tmp_path):
    write_ts(tmp_path, ["1:2:up", "1:3:down"])
    write_ts(tmp_path, ["1:2:up"], "TEST")
    with pytest.raises(ValueError, match=r"Two_TRAIN\.ts must have .* it has 1 of up, 1 of down"):
        load_series("Two", tmp_path)


def test_the_parts_are_disjoint_and_scaled_by_the_training_part_alone(folder):
    splits = load_series("Two", folder, val=0.4)
    assert splits.classes == ("up", "down")
    assert [len(part.y) for part in splits[:3]] == [6, 4, 4]
    assert sorted(splits.val.y.tolist()) == [0, 0, 1, 1]
    frames = torch.cat(splits.train.x)
    torch.testing.assert_close(frames.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(frames.std(0, correction=0), torch.ones(2))
    again = load_series("Two", folder, val=0.4)
    assert all(map(torch.equal, splits.val.x, again.val.x))


def test_a_class_of_the_test_file_alone_is_refused(folder):
    text = (folder / "Two_TEST.ts").read_text()
    (folder / "Two_TEST.ts").write_text(text.replace("up down", "up down left") + "1:2:left\n")
    with pytest.raises(
        BrokenFileError, match=r"the class .left., which .*Two_TRAIN\.ts does not have"
    ):
        load_series("Two", folder)


def test_the_folder_may_begin_with_a_tilde(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert len(load_series("Two", f"~/{folder.name}").test.y) == 4


def test_what_is_missing_or_misspelt_is_said(folder):
    with pytest.raises(FileNotFoundError, match=r"lacks Three_TRAIN\.ts and Three_TEST\.ts"):
        load_series("Three", folder)
    with pytest.raises(FileNotFoundError, match=r"Two_TRAIN\.ts and Two_TEST\.ts with --data-dir"):
        load_series("Two", None)
    with pytest.raises(ValueError, match="layout must be 'ts' or 'uci', got 'arff'"):
        load_series("Two", folder, "arff")
    with pytest.raises(ValueError, match="val must be between 0 and 1, got 1"):
        load_series("Two", folder, val=1)


def test_every_series_comes_once_an_epoch_padded_on_the_right(folder):
    train = load_series("Two", folder).train
    loader = SeriesBatches(train, 3, seed=1)
    batches = list(loader)
    # a single row that is left over joins the minibatch before it
    assert [len(batch.y) for batch in batches] == [3, 3, 2]
    rows = [batch.x[: int(n), b].tolist() for batch in batches for b, n in enumerate(batch.lengths)]
    assert sorted(rows) == sorted(x.tolist() for x in train.x)
    loader.set_epoch(1)
    assert [batch.y.tolist() for batch in loader] != [batch.y.tolist() for batch in batches]


def test_the_published_sets(data_dir):
    vowels = load_series("JapaneseVowels", data_dir)
    assert [len(part.y) for part in vowels[:3]] == [216, 54, 370]
    lengths = {len(x) for part in vowels[:3] for x in part.x}
    assert (min(lengths), max(lengths)) == (7, 29)
    digits = load_series("PenDigits", data_dir, "uci", 2)
    assert [len(part.y) for part in digits[:3]] == [5994, 1500, 3498]
    assert {tuple(x.shape) for x in digits.test.x} == {(8, 2)}


def test_a_feature_that_is_constant_in_training_keeps_its_own_scale(tmp_path):
    write_ts(tmp_path, [f"{i},{i + 1}:3,3:{('up', 'down')[i % 2]}" for i in range(10)])
    write_ts(tmp_path, ["1,2:3,5:up"], "TEST")
    splits = load_series("Two", tmp_path)
    assert splits.test.x[0][:, 1].tolist() == [0, 2]
    assert splits.std[1] == 1


def test_a_small_feature_has_variance_1_too(tmp_path):
    write_ts(tmp_path, [f"{i}e-20:1:{('up', 'down')[i % 2]}" for i in range(10)])
    write_ts(tmp_path, ["1:2:up"], "TEST")
    x = torch.cat(load_series("Two", tmp_path).train.x)[:, 0]
    torch.testing.assert_close(x.var(correction=0), torch.tensor(1.0))


def test_of_every_class_some_are_left_to_train_on(tmp_path):
    write_ts(tmp_path, [f"{i}:1:{'up' if i < 2 else 'down'}" for i in range(20)])
    write_ts(tmp_path, ["1:2:up"], "TEST")
    splits = load_series("Two", tmp_path, val=0.9)
    assert sorted(set(splits.train.y.tolist())) == sorted(set(splits.val.y.tolist())) == [0, 1]
