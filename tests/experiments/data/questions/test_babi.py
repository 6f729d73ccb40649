import io
import tarfile

import pytest

from rnnorm.experiments.data.questions import babi
from rnnorm.experiments.data.questions.babi import read_babi, stories

STORY = (
    "1 Mary moved to the bathroom.\n2 John went home.\n3 Where is Mary? \tbathroom\t1\n"
    "4 Mary left.\n5 Who left?\tMary\t4\n1 It's dark.\n2 Is it dark? \tdark\t1\n"
)


def write(folder, task=1, part="train", text=STORY):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"qa{task}_some-task_{part}.txt").write_text(text)


def archive(path, names, text=STORY, mode="w:gz"):
    with tarfile.open(path, mode) as file:
        for name in names:
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


def test_a_document_is_the_sentences_before_the_question():
    first, second, third = stories(STORY, "qa1")
    assert " ".join(first.document) == "mary moved to the bathroom . john went home ."
    assert first.query == ["where", "is", "mary", "?"]
    assert second.document == [*first.document, "mary", "left", "."]
    assert [q.answer for q in (first, second, third)] == ["bathroom", "mary", "dark"]
    assert third.document == ["it", "'", "s", "dark", "."]
    assert second.source == "qa1, line 5"


def test_each_story_has_a_number_through_all_tasks(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 12)
    assert [q.story for q in read_babi(tmp_path, [12, 1], "train")] == [1, 1, 2, 3, 3, 4]


@pytest.mark.parametrize(
    "inner", [".", "en-10k", "tasks_1-20_v1-2/en-10k", "again/en-10k", "a/tasks_1-20_v1-2/en-10k"]
)
def test_published_folders(tmp_path, inner):
    write(tmp_path / inner, 2, "test")
    write(tmp_path / inner, 2, "train", "broken")
    assert len(list(read_babi(tmp_path, [2], "test"))) == 3


@pytest.mark.parametrize(("name", "mode"), [("a.tar.gz", "w:gz"), ("a.tar.xz", "w:xz")])
def test_an_archive_is_read_where_it_is(tmp_path, name, mode):
    archive(tmp_path / name, ["babi/qa1_a_train.txt", "babi/qa1_a_test.txt"], mode=mode)
    assert len(list(read_babi(tmp_path, [1], "train"))) == 3


def test_of_the_published_archive_the_larger_english_set_is_read(tmp_path):
    archive(tmp_path / "a.tar.gz", [f"t/{s}/qa1_a_test.txt" for s in ("en", "en-10k", "hn-10k")])
    assert "t/en-10k/qa1" in next(read_babi(tmp_path, [1], "test")).source


@pytest.mark.parametrize(("name", "mode"), [("a.tar.gz", "w"), ("a.tar", "w"), ("a.tgz", "w:gz")])
def test_an_archive_that_was_unpacked_or_packed_again(tmp_path, name, mode):
    macos = ["./._en-10k", "./en-10k/._qa1_a_train.txt", "__MACOSX/en-10k/qa1_a_train.txt"]
    archive(tmp_path / name, [*macos, "./again/en-10k/qa1_a_train.txt"], mode=mode)
    (tmp_path / f"._{name}").write_bytes(b"\0\5\x16\7")
    assert len(list(read_babi(tmp_path, [1], "train"))) == 3


def test_an_archive_without_it_is_refused(tmp_path):
    others = [f"tasks/{s}/qa1_a_train.txt" for s in ("en", "en-valid-10k", "hn-10k", "shuffled")]
    archive(tmp_path / "a.tar.gz", others)
    with pytest.raises(FileNotFoundError, match=r"lacks qa1_\*_train.txt"):
        list(read_babi(tmp_path, [1], "train"))


def test_text_that_is_not_utf8_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as file:
        member = tarfile.TarInfo("qa1_a_train.txt")
        member.size = 4
        file.addfile(member, io.BytesIO(b"1 \xff\n"))
    with pytest.raises(ValueError, match=r"qa1_a_train\.txt is no UTF-8 text: it has ff at byte 2"):
        list(read_babi(tmp_path, [1], "train"))


def test_a_missing_task_is_named(tmp_path):
    write(tmp_path, 1)
    with pytest.raises(FileNotFoundError, match=r"lacks qa3_\*_train.txt, qa4_\*_train.txt"):
        list(read_babi(tmp_path, [1, 3, 4], "train"))
    with pytest.raises(FileNotFoundError, match=r"lacks qa1_\*_test.txt"):
        list(read_babi(tmp_path, [1], "test"))


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_a_truncated_archive_is_refused(tmp_path, mode):
    path = tmp_path / f"a.tar.{mode[2:]}"
    archive(path, [f"en-10k/qa{i}_a_train.txt" for i in range(1, 21)], STORY * 500, mode)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=f"a.tar.{mode[2:]} is truncated"):
        list(read_babi(tmp_path, range(1, 21), "train"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (STORY.replace("2 John", "3 John"), "'3' in line 2, not sentence 2"),
        (STORY.replace("\t1\n4", "\n4"), "1 fields behind the question of line 3"),
        (STORY.replace("2 John went home.", "2 "), "an empty sentence in line 2"),
        ("1 Where is Mary?\thall\t1\n", "line 1: the document is empty"),
        ("1 a.\n2 \thall\t1\n", "line 2: the query is empty"),
        ("1 a.\n2 Where?\t\t1\n", "line 2: the answer is empty"),
        (STORY + "1 Mary moved.\n", "truncated: it ends in line [0-9]+ without a question"),
        ("\n", "truncated: it ends in line 0 without a question"),
        ("Mary moved.\n", "'Mary' in line 1, not sentence 1"),
    ],
)
def test_broken_stories_are_refused(text, what):
    with pytest.raises(ValueError, match=f"qa1.*{what}"):
        list(stories(text, "qa1"))


def test_a_link_in_an_archive_is_named(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as file:
        member = tarfile.TarInfo("en-10k/qa1_a_train.txt")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(member)
    with pytest.raises(ValueError, match=r"a\.tar\.gz, en-10k/qa1_a_train\.txt is a link"):
        list(read_babi(tmp_path, [1], "train"))


def test_documents_of_too_many_words_are_refused(monkeypatch):
    monkeypatch.setattr(babi, "_MOST_WORDS", 15)
    with pytest.raises(ValueError, match=r"qa1 is too large: up to line 5 .* more than 15 words"):
        list(stories(STORY, "qa1"))
