import os
from pathlib import Path

import pytest

from rnnorm.experiments.data.questions.corpora import hold_out, load_questions
from rnnorm.experiments.data.questions.question import Question, same_stories


def asked(story):
    return Question([["a", "b"]], ["c"], "a", "file", story)


@pytest.fixture(scope="module")
def real():
    folder = Path(os.environ.get("RNNORM_DATA", "nowhere")) / "cloze"
    if not folder.is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with cloze/")
    return folder


def write_chinese(folder, cft="cft"):
    text = "1 ||| {0} 一 二 三 四 五 六 七 八 九 十 。\n<qid_0> ||| {1}\n"
    for kind, blank in (("cloze", "XXXXX 一"), ("user", "什么 一 ？")):
        lines = "".join(
            text.format(f"{kind}{i}", blank).replace("qid_0", f"qid_{i}") for i in range(5)
        )
        (folder / "cmrc2017").mkdir(exist_ok=True)
        (folder / "cmrc2017" / f"{kind}.valid.doc_query").write_text(lines, encoding="utf-8")
        answers = "".join(f"<qid_{i}> ||| {kind}{i}\n" for i in range(5))
        (folder / "cmrc2017" / f"{kind}.valid.answer").write_text(answers, encoding="utf-8")
    (folder / cft).mkdir(exist_ok=True)
    for name, words in (("auto", ("cloze1", "own")), ("human", ("cloze3", "own"))):
        lines = "".join(
            f"1 ||| {w} 一 二 三 四 五 六 七 八 九 十 。\n2 ||| XXXXX 一 ||| {w}\n" for w in words
        )
        (folder / cft / f"cft.test.{name}").write_text(lines, encoding="utf-8")


def test_stories_are_held_out_whole_and_always_the_same():
    questions = [asked(i // 3) for i in range(60)]
    train, val = hold_out(questions)
    assert len(val) == 6
    assert not {q.story for q in train} & {q.story for q in val}
    assert sorted([*train, *val], key=questions.index) == questions
    assert hold_out(questions)[1] == val


def test_texts_of_the_test_are_in_no_other_part(tmp_path):
    write_chinese(tmp_path)
    parts = load_questions("chinese", tmp_path)
    assert sorted(q.answer for q in parts["test"]) == ["cloze3", "own"]
    known = sorted(q.answer for part in ("train", "val") for q in parts[part])
    expected = {f"cloze{i}" for i in (0, 1, 2, 4)} | {f"user{i}" for i in range(5)}
    assert set(known) == expected
    # cloze1 stands in both sets, and both questions on one side
    assert len(known) == 10
    stories = [{q.story for q in parts[part]} for part in ("train", "val", "test")]
    assert not stories[0] & stories[1]
    assert not (stories[0] | stories[1]) & stories[2]


def test_a_missing_file_is_named(tmp_path):
    write_chinese(tmp_path)
    (tmp_path / "cft" / "cft.test.human").unlink()
    with pytest.raises(FileNotFoundError, match=r"cft lacks cft\.test\.human \(plain, or ending"):
        load_questions("chinese", tmp_path)


@pytest.mark.parametrize(
    ("name", "tasks", "what"),
    [
        ("squad", [1], "'cnn', 'babi' or 'chinese', got 'squad'"),
        ("babi", [], "tasks must be numbers"),
        ("babi", [1, 21], r"1 to 20, got \[1, 21\]"),
    ],
)
def test_unknown_sets_and_tasks(tmp_path, name, tasks, what):
    with pytest.raises(ValueError, match=what):
        load_questions(name, tmp_path, tasks)


def test_a_folder_is_needed():
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load_questions("cnn", None)


def test_the_real_chinese_questions(real):
    parts = {name: list(part) for name, part in load_questions("chinese", real).items()}
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 4450,
        "val": 502,
        "test": 1953,
    }
    long = {
        name: {tuple(s) for q in part for s in q.sentences if len(s) >= 10}
        for name, part in parts.items()
    }
    assert not long["train"] & long["test"]
    assert not long["val"] & long["test"]
    assert not long["train"] & long["val"]
    absent = {name: sum(q.answer not in q.document for q in part) for name, part in parts.items()}
    assert absent["test"] == 9
    assert len(same_stories(parts["test"])) == 1953


def test_the_real_stories(real):
    parts = {name: list(part) for name, part in load_questions("babi", real, [1, 5]).items()}
    assert len(parts["test"]) == 2000
    assert len(parts["train"]) + len(parts["val"]) == 20000
    assert 1900 < len(parts["val"]) < 2100
    assert all(q.answer in q.document for part in parts.values() for q in part)
    with pytest.raises(FileNotFoundError, match=r"lacks qa3_\*_train\.txt"):
        load_questions("babi", real, [3])
