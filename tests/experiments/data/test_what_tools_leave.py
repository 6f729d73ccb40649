"""Marks, line ends, blanks and archives of people's tools change nothing that is read."""

import gzip
import zipfile
from functools import partial

import numpy as np
import pytest
from stroke_files import IAM

from rnnorm.experiments.data.kaldi.archive import read_scp
from rnnorm.experiments.data.kaldi.folder import read_transcripts
from rnnorm.experiments.data.questions.babi import read_babi
from rnnorm.experiments.data.questions.cmrc import read_cft, read_cmrc
from rnnorm.experiments.data.questions.cnn import read_cnn_question
from rnnorm.experiments.data.series import read_ts, read_uci
from rnnorm.experiments.data.speech.timit import read_phones
from rnnorm.experiments.data.strokes.corpora import read_iam
from rnnorm.experiments.data.text.corpora import check_text8, sentence_characters, sentence_words
from rnnorm.experiments.data.text.parallel import read_parallel
from rnnorm.experiments.data.text.rated import read_rated, read_rated_csv
from rnnorm.experiments.data.text_file import read_text
from rnnorm.experiments.recipe.recipe import read_yaml
from rnnorm.experiments.training.metrics import read_metrics


def with_answers(path):
    answers = path.with_name("answers")
    answers.write_text("<qid_0> ||| a\n")
    return list(read_cmrc(path, answers))


def of_text(read, path):
    return read(read_text(path), path)


#: for each reader a file's name and text, and what it does not allow
READERS = {
    "words": (partial(of_text, sentence_words), "a", " the cat \n a dog \n", "unended"),
    "characters": (partial(of_text, sentence_characters), "a", "t h e \n a _ b \n", "unended"),
    "text8": (partial(of_text, check_text8), "text8", "the cat sat", "blank"),
    "rated": (read_rated, "a", "1_1\t-0.5\ttoo long\n1_2\t3\tgood\n", ""),
    "csv": (
        lambda path: [r[:2] for r in read_rated_csv(path)],
        "a",
        "text,label\na b,1\nc,0\n",
        "",
    ),
    "parallel": (
        lambda path: read_parallel(path, path),
        "a",
        "ein Hund .\nzwei\n",
        "blank between",
    ),
    "babi": (
        lambda path: list(read_babi(path.parent, [1], "train")),
        "qa1_a_train.txt",
        "1 Ann left.\n2 Who left?\tAnn\t1\n",
        "between",
    ),
    "cmrc": (with_answers, "a", "1 ||| a b\n<qid_0> ||| XXXXX b\n", "between"),
    "cft": (lambda path: list(read_cft(path)), "a", "1 ||| a b\n2 ||| XXXXX b ||| a\n", "between"),
    "cnn": (
        read_cnn_question,
        "a.question",
        "x\n\n@entity1 met @entity2 .\n\n@placeholder met\n\n@entity1\n\n@entity1:Ann\n",
        "between",
    ),
    "ts": (read_ts, "a.ts", "#a\n@classLabel true 1 2\n@data\n1,2:3,4:1\n5:6:2\n", ""),
    "uci": (read_uci, "a.tra", "1,2,3,0\n5,6,7,1\n", ""),
    "scp": (read_scp, "feats.scp", "one a.ark:7\ntwo a.ark:9\n", ""),
    "transcripts": (read_transcripts, "text", "one YES NO\ntwo\n", ""),
    "phones": (read_phones, "a.PHN", "0 80 h#\n80 160 sh\n", ""),
    "iam": (read_iam, "a.xml", IAM.partition("?>")[2].strip() + "\n", ""),
    "metrics": (
        read_metrics,
        "metrics.csv",
        "step,epoch,seconds,name,value\n1,0,0.5,val/loss,2\n",
        "unended between packed",
    ),
    "yaml": (read_yaml, "a.yaml", "a:\n  b: [1, 2]\nc: text\n", "packed"),
}


def zipped(path, text):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"again/{path.name}", text)
        archive.writestr(f"__MACOSX/again/._{path.name}", b"\0\5\x16\7")


DISGUISES = {
    "mark": lambda path, text: path.write_bytes(text.encode("utf-8-sig")),
    "utf-16": lambda path, text: path.write_bytes(text.encode("utf-16")),
    "windows": lambda path, text: path.write_bytes(text.replace("\n", "\r\n").encode()),
    "notepad": lambda path, text: path.write_bytes(text.replace("\n", "\r\n").encode("utf-16")),
    "old-macintosh": lambda path, text: path.write_bytes(text.replace("\n", "\r").encode()),
    "unended": lambda path, text: path.write_text(text.removesuffix("\n")),
    "blank": lambda path, text: path.write_text(f"{text}\n \n"),
    "between": lambda path, text: path.write_text(text.replace("\n", "\n\n")),
    "trailing": lambda path, text: path.write_text(text.replace("\n", " \n")),
    "gzip-packed": lambda path, text: path.write_bytes(gzip.compress(text.encode())),
    "zip-packed": zipped,
}
ALLOWED = [
    (reader, disguise)
    for reader, (*_, refused) in READERS.items()
    for disguise in DISGUISES
    if not any(word in disguise for word in refused.split())
]


@pytest.mark.parametrize(("reader", "disguise"), ALLOWED)
def test_the_same_is_read(tmp_path, reader, disguise):
    read, name, text, _ = READERS[reader]
    (tmp_path / "a.ark").touch()
    path = tmp_path / name
    path.write_text(text)
    want = read(path)
    DISGUISES[disguise](path, text)
    np.testing.assert_equal(read(path), want)
