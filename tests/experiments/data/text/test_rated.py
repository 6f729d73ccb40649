import gzip
import os
from pathlib import Path

import pytest
from rated_files import write_rated

from rnnorm.experiments.data.text.rated import load_rated, read_rated, read_rated_csv
from rnnorm.experiments.files import BrokenFileError


def written(tmp_path, text, name="a"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_line_is_a_text(tmp_path):
    read = read_rated(written(tmp_path, "7_2\t-0.25\ttoo  long\n8\t3\tgood\n"))
    assert [tuple(each) for each in read] == [("too  long", -0.25, "7"), ("good", 3.0, "8")]


def test_columns_are_found_by_their_names(tmp_path):
    read = read_rated_csv(
        written(tmp_path, 'label,by,text\n1,Ann,"good, ""very""\ngood"\n-2,,bad\n')
    )
    assert [each[:2] for each in read] == [('good, "very"\ngood', 1.0), ("bad", -2.0)]


def test_what_a_spreadsheet_leaves_is_no_row(tmp_path):
    text = "\n text , label,,\ngood,1,,\n,,,\n\nbad,-1,,\n,,,\n"
    assert [each[:2] for each in read_rated_csv(written(tmp_path, text))] == [
        ("good", 1.0),
        ("bad", -1.0),
    ]


def test_the_limit_of_a_text_can_be_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("RNNORM_LIMITS", "2")
    path = written(tmp_path, f"text,label\n{'a' * 200_000},1\n")
    assert len(read_rated_csv(path)[0].text) == 200_000


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1\t2\tgood\n2\t1\n", "line 2 must be an id, a rating and a text"),
        ("1\t2\tgood\n\n2 1 good\n", "line 3 must be an id, a rating and a text"),
        ("1\tgood\tgood\n", "line 1 must have a finite number as its rating, got 'good'"),
        ("1\tnan\tgood\n", "line 1 must have a finite number as its rating, got 'nan'"),
        ("1\t1e999\tgood\n", "line 1 must have a finite number"),
        ("\t1\tgood\n", "line 1 has no id"),
        ("1\t1\t \n", "line 1 has no text"),
        ("", "is empty"),
    ],
)
def test_a_broken_published_file_is_refused(tmp_path, text, what):
    with pytest.raises(BrokenFileError, match=f"{tmp_path}/a.*{what}"):
        read_rated(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("text,rating\na,1\n", "line 1 must name the columns label"),
        ("text,label,text\na,1,b\n", "line 1 names the column 'text' twice"),
        ("text,label\na\n", "line 2 has 1 values, the columns are 2"),
        ("text,label\na,1,\n", "line 2 has 3 values"),
        ("text,label\na,1\nb,positive\n", "line 3 must have a finite number as its rating, got 'p"),
        ("text,label\n,1\n", "line 2 has no text"),
        ('text,label\n"a,1\n', "line 2: unexpected end of data"),
        (f"text,label\n{'a' * 200_000},1\n", "line 2: field larger than field limit.*; RNNORM_LIM"),
    ],
)
def test_a_broken_csv_is_refused(tmp_path, text, what):
    with pytest.raises(BrokenFileError, match=f"{tmp_path}/a.*{what}"):
        read_rated_csv(written(tmp_path, text))


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"1\t2\tgood\n" * 99)[:-5])
    with pytest.raises(BrokenFileError, match="truncated"):
        read_rated(path)


def test_every_text_is_in_one_part_and_a_story_in_one(tmp_path):
    lines = [f"{i // 3}_{i % 3}\t{(1, -1)[i % 2]}\ttext {i}\n" for i in range(90)]
    written(tmp_path, "".join(lines), "tweets_GroundTruth.txt")
    parts = load_rated("tweets", tmp_path)
    texts = [each.text for part in parts[:3] for each in part]
    assert sorted(texts) == sorted(f"text {i}" for i in range(90))
    train, val, test = ({each.story for each in part} for part in parts[:3])
    assert [len(part) for part in (train, val, test)] == [24, 3, 3]
    assert len(train | val | test) == len(train) + len(val) + len(test)


def test_a_file_that_is_sorted_is_mixed_where_no_epoch_mixes_it(tmp_path):
    lines = [f"{i}\t{1 if i < 200 else -1}\ttext {i}\n" for i in range(400)]
    written(tmp_path, "".join(lines), "tweets_GroundTruth.txt")
    parts = load_rated("tweets", tmp_path)
    for part in (parts.val, parts.test):
        first = [each.rating > 0 for each in part[: len(part) // 2]]
        assert 0.2 < sum(first) / len(first) < 0.8


def test_what_is_neither_above_nor_below_or_there_twice_is_left_out_and_counted(tmp_path):
    lines = [f"{i}\t{(1, -1)[i % 2]}\ttext {i}\n" for i in range(60)]
    lines += ["60\t0\tneither\n", "61\t0.0\tneither, too\n", "62\t1\ttext 1\n"]
    written(tmp_path, "".join(lines), "tweets_GroundTruth.txt")
    parts = load_rated("tweets", tmp_path)
    said = [note.partition(": ")[2] for note in parts.notes]
    assert said == ["2 texts rated 0 left out", "1 texts twice left out"]
    rated = {each.text: each.rating for part in parts[:3] for each in part}
    assert len(rated) == 60
    assert rated["text 1"] == -1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"dataset": "csv"}, "file must name the file of dataset 'csv' alone, got None"),
        ({"dataset": "movies", "file": "a"}, "file must name the file of dataset 'csv' alone"),
        ({"dataset": "films"}, "dataset must be one of 'movies', 'tweets', 'products' or 'csv'"),
        ({"dataset": "csv", "file": "own.csv"}, "too few texts .* threshold=0.0: 60 and 0"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, what):
    written(tmp_path, "text,label\n" + "".join(f"a{i},{1 + i % 2}\n" for i in range(60)), "own.csv")
    with pytest.raises(ValueError, match=what):
        load_rated(data_dir=tmp_path, **arguments)
    assert load_rated("csv", tmp_path, "own.csv", threshold=1.5).train


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"movieReviewSnippets_GroundTruth\.txt with --data"
    ):
        load_rated("movies", None)
    with pytest.raises(FileNotFoundError, match=r"lacks tweets_GroundTruth\.txt"):
        load_rated("tweets", write_rated(tmp_path / "texts"))


def test_the_published_files():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "sentiment").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with sentiment/")
    for name, above, below in (
        ("movies", 5242, 5326),
        ("tweets", 2897, 1299),
        ("products", 2128, 1482),
    ):
        parts = load_rated(name, folder)
        ratings = [each.rating for part in parts[:3] for each in part]
        twice = [int(note.split()[-5]) for note in parts.notes if "twice" in note]
        counted = sum(r > 0 for r in ratings) + sum(r < 0 for r in ratings)
        assert above + below - sum(twice) <= counted <= above + below
