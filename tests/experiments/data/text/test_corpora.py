import gzip

import pytest

from rnnorm.experiments.data.text.corpora import load_corpus
from rnnorm.experiments.files import BrokenFileError


def decoded(corpus, part):
    return [corpus.vocabulary.symbols[n] for n in part.symbols.tolist()]


def test_words_have_an_end_symbol_for_each_line(sentences):
    corpus = load_corpus("ptb-word", sentences)
    words = decoded(corpus, corpus.train)
    assert words[:8] == ["the", "cat", "sat", "on", "the", "mat", "<eos>", "a"]
    assert words.count("<eos>") == 60
    assert words[-1] == "<eos>"
    assert decoded(corpus, corpus.val).count("<eos>") == 12


def test_characters_have_the_line_end_among_them(sentences):
    corpus = load_corpus("ptb-char", sentences)
    text = "".join(decoded(corpus, corpus.train))
    assert text.startswith("the_cat_sat_on_the_mat\na_<unk>_cat")
    assert text.count("\n") == 60
    assert text.endswith("\n")
    assert " " not in text


def test_files_are_found_below_the_folder_and_compressed(sentences, tmp_path):
    whole = load_corpus("ptb-char", sentences)
    (tmp_path / "ptb").mkdir()
    for path in sentences.glob("ptb.char.*"):
        (tmp_path / "ptb" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    below = load_corpus("ptb-char", tmp_path)
    assert below.test.symbols.tolist() == whole.test.symbols.tolist()
    assert below.test.source.endswith("ptb.char.test.txt.gz")


def test_text8_is_split_by_its_length(tmp_path):
    text = "ab c" * 100
    (tmp_path / "text8").write_text(text)
    corpus = load_corpus("text8", tmp_path)
    parts = [decoded(corpus, part) for part in corpus[:3]]
    assert [len(part) for part in parts] == [360, 20, 20]
    assert "".join(symbol for part in parts for symbol in part) == text


def test_any_text_by_its_name(tmp_path):
    (tmp_path / "own.txt").write_text("größer\n" * 50, encoding="utf-8")
    corpus = load_corpus("text", tmp_path, "own.txt")
    assert corpus.vocabulary.symbols == ("\n", "e", "g", "r", "ß", "ö")
    assert [len(part.symbols) for part in corpus[:3]] == [316, 17, 17]
    assert load_corpus("text", None, tmp_path / "own.txt").vocabulary.symbols[0] == "\n"


def test_the_published_counts(ptb_dir):
    characters, words = (load_corpus(name, ptb_dir) for name in ("ptb-char", "ptb-word"))
    assert [len(part.symbols) for part in characters[:3]] == [5017482, 393042, 442423]
    assert len(characters.vocabulary) == 50
    assert [len(part.symbols) for part in words[:3]] == [929589, 73760, 82430]
    assert len(words.vocabulary) == 10000


@pytest.mark.parametrize(
    ("dataset", "name", "text", "what"),
    [
        ("ptb-char", "ptb.char.valid.txt", "t h\n ", None),
        ("ptb-char", "ptb.char.valid.txt", "t h e \n t ha t \n ", "has 'ha' in line 2, column 4"),
        (
            "ptb-char",
            "ptb.char.valid.txt",
            "t h e \n t h",
            "truncated: it ends in line 2, column 5",
        ),
        ("ptb-char", "ptb.char.test.txt", "t h z \n", "character 'z' in line 1, column 5"),
        ("ptb-char", "ptb.char.test.txt", "", "is empty"),
        ("ptb-word", "ptb.test.txt", " the dog \n", "word 'dog' in line 1, column 6"),
        ("ptb-word", "ptb.train.txt", " the cat", "truncated: it ends in line 1, column 9"),
    ],
)
def test_broken_files_are_named(sentences, dataset, name, text, what):
    (sentences / name).write_text(text)
    if what is None:
        load_corpus(dataset, sentences)
        return
    with pytest.raises(BrokenFileError, match=rf"{name} .*{what}"):
        load_corpus(dataset, sentences)


def test_what_is_not_text8(tmp_path):
    (tmp_path / "text8").write_text("abc Def")
    with pytest.raises(BrokenFileError, match="is not text8: it has 'D' in line 1, column 5"):
        load_corpus("text8", tmp_path)


def test_an_empty_part(tmp_path):
    (tmp_path / "text8").write_text("a" * 19)
    with pytest.raises(
        BrokenFileError, match="text8 has no validation part: it ends after 19 symbols"
    ):
        load_corpus("text8", tmp_path)


def test_files_beside_an_empty_folder_of_the_name_are_found(tmp_path):
    (tmp_path / "text8").write_text("abc " * 100)
    (tmp_path / "ptb").mkdir()
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb.{part}.txt").write_text(" a b <unk> \n")
    assert len(load_corpus("ptb-word", tmp_path).test.symbols) == 4


def test_missing_files(tmp_path):
    (tmp_path / "ptb.train.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"lacks ptb\.valid\.txt, ptb\.test\.txt"):
        load_corpus("ptb-word", tmp_path)
    with pytest.raises(FileNotFoundError, match="with --data-dir"):
        load_corpus("text8")
    with pytest.raises(FileNotFoundError, match=r"no text file .*own\.txt"):
        load_corpus("text", tmp_path, "own.txt")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("wiki", "."), "'text8' or 'text', got 'wiki'"),
        (("ptb-char", ".", "a"), "file must be None for ptb-char"),
        (("text", "."), "file must name the text"),
    ],
)
def test_bad_arguments(arguments, what):
    with pytest.raises(ValueError, match=what):
        load_corpus(*arguments)


def test_windows_line_ends_and_a_byte_order_mark_change_no_symbol(tmp_path):
    text = "the cat sat\non the mat\n" * 10
    (tmp_path / "plain").write_bytes(text.encode())
    (tmp_path / "windows").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    one, two = (load_corpus("text", tmp_path, name) for name in ("plain", "windows"))
    assert one.vocabulary.symbols == two.vocabulary.symbols
    assert one.train.symbols.equal(two.train.symbols)
