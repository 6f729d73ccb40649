import gzip
import os
from pathlib import Path

import pytest
from parallel_files import write_multi30k

from rnnorm.experiments.data.text.parallel import Pair, load_parallel, read_parallel
from rnnorm.experiments.files import BrokenFileError


def written(folder, *texts):
    paths = [folder / name for name in ("a.de", "a.en")]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_lines_are_pairs(tmp_path):
    paths = written(tmp_path, "Ein  Hund .\nÄh\n", "A dog .\nEr")
    assert read_parallel(*paths) == [
        Pair(("ein", "hund", "."), ("a", "dog", ".")),
        Pair(("äh",), ("er",)),
    ]
    assert read_parallel(*paths, lower=False)[0].source == ("Ein", "Hund", ".")


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (("a\nb\n", "a\n"), "a.en must have a line for each of .*a.de: they have 1 and 2"),
        (("a\n", "a\n\n"), "a.en, line 2 is empty"),
        (("a\n \t\nb\n", "a\nb\nc\n"), "a.de, line 2 is empty"),
        (("a\n", ""), "a.en is empty"),
        (("a\n\n", "a\n\n"), "a.de, line 2 is empty"),
        (("a\x00\n", "a\n"), "a.de is binary"),
    ],
)
def test_broken_files_are_refused(tmp_path, texts, what):
    with pytest.raises(BrokenFileError, match=what):
        read_parallel(*written(tmp_path, *texts))


def test_a_truncated_file_is_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a dog\n" * 99)[:-5])
    with pytest.raises(BrokenFileError, match="truncated"):
        read_parallel(tmp_path / "a.gz", tmp_path / "a.gz")


def test_the_published_layout_has_three_parts(tmp_path):
    write_multi30k(tmp_path / "multi30k", train=50)
    parts = load_parallel("multi30k", tmp_path)
    assert [len(part) for part in parts[:3]] == [50, 30, 30]
    back = load_parallel("multi30k", tmp_path / "multi30k", ("en", "de"))
    assert [pair[::-1] for pair in back.val] == [tuple(pair) for pair in parts.val]


def test_two_files_of_ones_own_are_split_and_no_pair_is_on_both_sides(tmp_path):
    lines = "".join(f"w{i}\n" for i in [*range(40), 3, 3])
    written(tmp_path, lines, lines)
    parts = load_parallel("files", tmp_path, files=("a.de", "a.en"))
    assert [len(part) for part in parts[:3]] == [32, 4, 4]
    assert {p.source[0] for part in parts[:3] for p in part} == {f"w{i}" for i in range(40)}
    assert parts.notes == ["a.de and a.en: 2 pairs twice left out"]


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        ({"dataset": "wmt"}, ValueError, "dataset must be 'multi30k' or 'files', got 'wmt'"),
        ({"dataset": "files"}, ValueError, "source and target must name the files"),
        ({"dataset": "multi30k", "files": ("a", "b")}, ValueError, "of dataset 'files' alone"),
        ({"dataset": "multi30k"}, FileNotFoundError, r"lacks train\.lc\.norm\.tok\.de"),
        ({"dataset": "multi30k", "data_dir": None}, FileNotFoundError, "--data-dir"),
        ({"dataset": "files", "files": ("a.de", "b.en")}, FileNotFoundError, r"b\.en"),
        ({"dataset": "files", "files": ("a.de", "a.en")}, ValueError, "too few pairs.*, of 19"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, error, what):
    written(tmp_path, *2 * ("".join(f"w{i}\n" for i in range(19)),))
    with pytest.raises(error, match=what):
        load_parallel(**{"data_dir": tmp_path} | arguments)


def test_the_published_files():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "multi30k").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with multi30k/")
    parts = load_parallel("multi30k", folder)
    assert [len(part) for part in parts[:3]] == [29_000, 1_014, 1_000]
    first = parts.train[1]
    assert first.source[:3] == ("mehrere", "männer", "mit")
    assert first.target[:3] == ("several", "men", "in")
