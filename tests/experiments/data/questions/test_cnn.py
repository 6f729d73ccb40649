import os
from pathlib import Path

import pytest

from rnnorm.experiments.data.questions.cnn import read_cnn_part, read_cnn_question, split_sentences

PARTS = [
    "http://example.org/a",
    '@entity1 met @entity0 . " hello , " said @entity0 . @entity2 left',
    "@placeholder met @entity0",
    "@entity1",
]


def write(folder, parts=PARTS, names="@entity0:Ann\n@entity1:Bob: the man\n", name="a.question"):
    path = folder / name
    path.write_text("\n\n".join(parts) + "\n\n" + names, encoding="utf-8")
    return path


def test_a_question_is_read(tmp_path):
    question = read_cnn_question(write(tmp_path))
    assert question.document == PARTS[1].split()
    assert [len(s) for s in question.sentences] == [4, 7, 2]
    assert question.query == PARTS[2].split()
    assert question.answer == "@entity1"


@pytest.mark.parametrize("names", ["", "\n", "@entity3:X"])
def test_the_names_may_be_missing(tmp_path, names):
    assert read_cnn_question(write(tmp_path, names=names)).answer == "@entity1"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("a b . c ? d ! e", ["a b .", "c ?", "d !", "e"]),
        ('" a . " b . " c . "', ['" a . "', "b .", '" c . "']),
        ("a . ) b", ["a . )", "b"]),
        ("a ? ! . b", ["a ? ! .", "b"]),
        ('he said . " no " .', ["he said .", '" no " .']),
    ],
)
def test_sentences(text, sentences):
    assert [" ".join(s) for s in split_sentences(text.split())] == sentences


@pytest.mark.parametrize(
    ("parts", "names", "what"),
    [
        (PARTS[:3], "", "nothing in line 7, where an answer should be"),
        (PARTS[:1], "", "nothing in line 3, where a document should be"),
        ([*PARTS[:1], "", *PARTS[2:]], "", "nothing in line 3, where a document"),
        ([*PARTS[:2], "", PARTS[3]], "", "nothing in line 5, where a query"),
        ([*PARTS[:3], "bob"], "", "'bob' in line 7, where the answer"),
        ([*PARTS[:2], "who met @entity0", PARTS[3]], "", "0 times @placeholder in line 5"),
        ([*PARTS[:2], "@placeholder @placeholder", PARTS[3]], "", "2 times @placeholder"),
        (PARTS, "Bob", "'Bob' in line 9, not @entityN:Name"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_line(tmp_path, parts, names, what):
    path = write(tmp_path, parts, names)
    with pytest.raises(ValueError, match=what) as error:
        read_cnn_question(path)
    assert str(path) in str(error.value)


def test_lines_without_blank_ones_between_are_refused(tmp_path):
    path = tmp_path / "a.question"
    path.write_text("\n".join(PARTS))
    with pytest.raises(ValueError, match=r"a\.question has text in line 2, which should be blank"):
        read_cnn_question(path)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.question").touch()
    with pytest.raises(ValueError, match="is empty"):
        read_cnn_question(tmp_path / "a.question")


def test_a_folder_is_read_in_the_order_of_its_names_one_file_at_a_time(tmp_path):
    for name, answer in (("b", "@entity1"), ("a", "@entity0")):
        write(tmp_path, [*PARTS[:3], answer], name=f"{name}.question")
    (tmp_path / "c.question").touch()
    questions = read_cnn_part(tmp_path)
    assert [next(questions).answer for _ in range(2)] == ["@entity0", "@entity1"]
    with pytest.raises(ValueError, match=r"c\.question is empty"):
        next(questions)


def test_what_macos_adds_is_no_question(tmp_path):
    write(tmp_path).with_name("._a.question").write_bytes(b"\0\5\x16\7")
    assert len(list(read_cnn_part(tmp_path))) == 1


def test_a_folder_without_questions_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no \.question file"):
        read_cnn_part(tmp_path / "training")


def test_real_questions():
    folder = Path(os.environ.get("RNNORM_DATA", "nowhere")) / "cloze" / "cnn_sample"
    if not folder.is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with cloze/cnn_sample/")
    questions = list(read_cnn_part(folder))
    assert len(questions) == 5
    for question in questions:
        assert 464 <= len(question.document) <= 1162
        assert question.answer in question.document
        assert 18 <= len({w for w in question.document if w.startswith("@entity")}) <= 34
        assert 10 < len(question.sentences) < 100
    # the one about a football captain
    assert questions[1].answer == "@entity0"
    assert questions[1].query[:3] == ["@placeholder", ":", '"']
