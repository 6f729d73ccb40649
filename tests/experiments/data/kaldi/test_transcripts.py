import numpy as np
import pytest
from kaldi_files import write_features

from rnnorm.experiments.data.kaldi.folder import load_kaldi_text, read_transcripts
from rnnorm.experiments.files import BrokenFileError


def write_text(folder, parts=("train", "dev", "test"), width=3):
    for part in parts:
        features = {f"{part}{i}": np.ones((4 + i, width), np.float32) for i in range(12)}
        write_features(folder / part, features)
        (folder / part / "text").write_text("".join(f"{name} NO YES\n" for name in features))
    return folder


def test_a_line_is_an_utterance_and_its_words(tmp_path):
    (tmp_path / "text").write_text("a NO  YES\nb\tYES\n")
    assert read_transcripts(tmp_path / "text") == {"a": "NO YES", "b": "YES"}


def test_an_utterance_may_have_no_words_and_a_name_what_ascii_has_not(tmp_path):
    text = "a\n\nb \t\n spk\u00a01-ü|x:y/z \t ja\u3000nein  NO\t\nc YES"
    (tmp_path / "text").write_text(text, encoding="utf-8")
    said = {"a": "", "b": "", "spk\u00a01-ü|x:y/z": "ja\u3000nein NO", "c": "YES"}
    assert read_transcripts(tmp_path / "text") == said


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a NO\na YES\n", "line 2 names utterance 'a' a second time"),
        ("a\n\na YES\n", "line 3 names utterance 'a' a second time"),
        ("", "is empty"),
    ],
)
def test_broken_transcripts_are_refused(tmp_path, text, what):
    (tmp_path / "text").write_text(text)
    with pytest.raises(BrokenFileError, match=f"{tmp_path}/text.*{what}"):
        read_transcripts(tmp_path / "text")


def test_symbols_are_words_or_characters(tmp_path):
    write_text(tmp_path)
    words, characters = (load_kaldi_text(tmp_path, units) for units in ("words", "characters"))
    assert words.train[0].symbols == ("NO", "YES")
    assert characters.train[0].symbols == tuple("NO YES")
    assert (words.num_features, words.train[2].frames) == (3, 6)
    assert words.train[2].read().shape == (6, 3)
    assert words.notes == []


def test_without_dev_a_tenth_of_training_validates(tmp_path):
    parts = load_kaldi_text(write_text(tmp_path, ("train", "test")), "words")
    assert [len(part) for part in parts[:3]] == [11, 1, 12]
    assert not {u.name for u in parts.train} & {u.name for u in parts.val}
    assert parts.notes[0].endswith("has no dev: 1 of the training utterances validate")


def test_what_lacks_words_or_features_is_left_out_and_counted(tmp_path):
    write_text(tmp_path)
    text = tmp_path / "train/text"
    text.write_text(text.read_text().replace("train3 ", "other "))
    parts = load_kaldi_text(tmp_path, "words")
    assert len(parts.train) == 11
    assert [note.partition(": ")[2] for note in parts.notes] == [
        "1 utterances without words, such as train3",
        "1 of text without features, such as other",
    ]
    text.write_text(text.read_text().replace("train5 NO YES", "train5\t"))
    parts = load_kaldi_text(tmp_path, "words")
    assert [note.partition(": ")[2] for note in parts.notes] == [
        "2 utterances without words, such as train3",
        "1 of text without features, such as other",
    ]
    text.write_text("other NO\n")
    with pytest.raises(ValueError, match="no utterance has both features and words"):
        load_kaldi_text(tmp_path, "words")


def test_what_is_missing_or_does_not_fit_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="--data-dir"):
        load_kaldi_text(None, "words")
    with pytest.raises(FileNotFoundError, match="lacks the folder train, test"):
        load_kaldi_text(tmp_path, "words")
    write_text(tmp_path)
    write_text(tmp_path, ("dev",), width=4)
    with pytest.raises(ValueError, match=r"all features must have as many columns, got 3 .* 4 "):
        load_kaldi_text(tmp_path, "words")
