"""The readers of CMRC 2017 and of CFT."""

import gzip

import pytest

from rnnorm.experiments.data.questions.cmrc import read_cft, read_cmrc

PASSAGES = "1 ||| 老虎 来 了 。\n2 ||| 狐狸 看见 XXXXX 。\n<qid_0> ||| 狐狸 看见 XXXXX。\n"
SECOND = "1 ||| 猴子 爬 树 。\n<qid_1> ||| XXXXX 爬 树 。\n"
ANSWERS = "<qid_0> ||| 老虎\n<qid_1> ||| 猴子\n"
CFT = (
    "1 ||| 老虎 来 了 。\n2 ||| 狐狸 走 。\n3 ||| XXXXX 来 了 。 ||| 老虎\n"
    "1 ||| a\n2 ||| XXXXX ||| a\n"
)


def cmrc(folder, passages=PASSAGES + SECOND, answers=ANSWERS, **arguments):
    documents = folder / "cloze.valid.doc_query"
    documents.write_text(passages, encoding="utf-8")
    (folder / "cloze.valid.answer").write_text(answers, encoding="utf-8")
    return list(read_cmrc(documents, folder / "cloze.valid.answer", **arguments))


def cft(folder, text):
    (folder / "cft.test.auto").write_text(text, encoding="utf-8")
    return list(read_cft(folder / "cft.test.auto"))


def test_questions_of_cmrc_are_read(tmp_path):
    first, second = cmrc(tmp_path)
    assert first.sentences == [["老虎", "来", "了", "。"], ["狐狸", "看见", "XXXXX", "。"]]
    assert first.query == ["狐狸", "看见", "XXXXX", "。"]
    assert (first.answer, second.answer) == ("老虎", "猴子")
    assert first.source.endswith("doc_query, line 3")


def test_user_questions_have_no_blank(tmp_path):
    passages = "1 ||| 老虎 来 了 。\n<qid_0> ||| 谁 来 了 ？\n"
    (question,) = cmrc(tmp_path, passages, "<qid_0> ||| 老虎\n", blank=False)
    assert question.query == ["谁", "来", "了", "？"]
    with pytest.raises(ValueError, match="1 times XXXXX in the query of line 3, not 0"):
        cmrc(tmp_path, PASSAGES, "<qid_0> ||| 老虎\n", blank=False)


@pytest.mark.parametrize(
    ("passages", "answers", "what"),
    [
        (PASSAGES.replace("XXXXX。", "老虎"), ANSWERS, "0 times XXXXX in the query of line 3"),
        (PASSAGES.replace("XXXXX。", "XXXXX XXXXX"), ANSWERS, "2 times XXXXX in the query"),
        (PASSAGES, ANSWERS, "has 2 answers, .*doc_query has 1 queries"),
        (PASSAGES + SECOND, ANSWERS[:15], "answer does not belong .* there is no answer"),
        (PASSAGES + SECOND, ANSWERS.replace("_0", "_3"), "where there is <qid_3>"),
        (PASSAGES + SECOND, "<qid_0> ||| 老 虎\n", "in line 1, not <qid_k> ||| word"),
        (PASSAGES + SECOND, "<qid_0> |||\n", "in line 1, not <qid_k> ||| word"),
        (PASSAGES[:20], ANSWERS, r"\d fields? in line|truncated: it ends in line"),
        (PASSAGES + "1 ||| 猴子\n", "<qid_0> ||| 老虎\n", "truncated: it ends in line 4"),
        ("3 ||| 猴子\n", ANSWERS, "'3' in line 1, not sentence 1"),
        ("猴子\n", ANSWERS, "1 fields in line 1, not 2"),
        ("<qid_0> ||| XXXXX\n", "<qid_0> ||| 老虎\n", "line 1: the document is empty"),
        ("1 ||| a\n<qid_0> |||\n", "<qid_0> ||| a\n", "0 times XXXXX in the query of line 2"),
    ],
)
def test_broken_files_of_cmrc_are_refused(tmp_path, passages, answers, what):
    with pytest.raises(ValueError, match=what) as error:
        cmrc(tmp_path, passages, answers)
    assert str(tmp_path) in str(error.value)


def test_a_truncated_gz_file_is_refused(tmp_path):
    documents = tmp_path / "cloze.valid.doc_query.gz"
    documents.write_bytes(gzip.compress(PASSAGES.encode())[:-12])
    (tmp_path / "cloze.valid.answer").write_text(ANSWERS, encoding="utf-8")
    with pytest.raises(ValueError, match="truncated: it ends at byte"):
        list(read_cmrc(documents, tmp_path / "cloze.valid.answer"))


def test_questions_of_cft_are_read(tmp_path):
    first, second = cft(tmp_path, CFT)
    assert first.document == ["老虎", "来", "了", "。", "狐狸", "走", "。"]
    assert (first.query, first.answer) == (["XXXXX", "来", "了", "。"], "老虎")
    assert second.sentences == [["a"]]


def test_a_query_left_empty_is_left_out(tmp_path):
    assert len(cft(tmp_path, "1 ||| a b\n2 |||  ||| b\n" + CFT)) == 2


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (CFT.replace("XXXXX 来", "来"), "0 times XXXXX in the query of line 3, not 1"),
        (CFT.replace("XXXXX 来", "XXXXX XXXXX"), "2 times XXXXX in the query of line 3"),
        (CFT + "1 ||| b\n", "truncated: it ends in line 6 without a query"),
        (CFT.replace("||| 老虎\n", "|||\n"), "no sentence, nor query and answer, in line 3"),
        (CFT.replace("||| 老虎\n", "||| 老虎 ||| 老虎\n"), "query and answer, in line 3"),
        (CFT.replace("2 ||| 狐", "5 ||| 狐"), "'5' in line 2, not sentence 2"),
        ("1 ||| XXXXX ||| a\n", "line 1: the document is empty"),
        ("1\n", "no sentence"),
    ],
)
def test_broken_files_of_cft_are_refused(tmp_path, text, what):
    with pytest.raises(ValueError, match=what) as error:
        cft(tmp_path, text)
    assert str(tmp_path) in str(error.value)
