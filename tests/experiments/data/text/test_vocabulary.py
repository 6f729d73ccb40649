import pytest
import torch

from rnnorm.experiments.data.text.vocabulary import Vocabulary
from rnnorm.experiments.files import BrokenFileError


def test_symbols_are_numbered_in_sorted_order():
    vocabulary = Vocabulary("banana")
    assert vocabulary.symbols == ("a", "b", "n")
    assert vocabulary.characters("nab", "nab", "f").tolist() == [2, 0, 1]


def test_characters_outside_ascii():
    text = "aπ𝄞é"
    vocabulary = Vocabulary(text)
    numbers = vocabulary.characters(text * 2, text * 2, "f").tolist()
    assert [vocabulary.symbols[n] for n in numbers] == list(text * 2)


@pytest.mark.parametrize(("count", "dtype"), [(255, torch.uint8), (256, torch.int32)])
def test_a_character_takes_one_byte_where_that_is_enough(count, dtype):
    text = "".join(map(chr, range(300, 300 + count)))
    vocabulary = Vocabulary(text)
    numbers = vocabulary.characters(text, text, "f")
    assert numbers.dtype == dtype
    assert numbers.tolist() == list(range(count))
    with pytest.raises(BrokenFileError, match="character 'a' in line 1, column 1"):
        vocabulary.characters("a", "a", "f")


def test_words():
    words = ["the", "cat", "<eos>", "the"]
    vocabulary = Vocabulary(words)
    numbers = vocabulary.words(words, "the cat\nthe", "f").tolist()
    assert [vocabulary.symbols[n] for n in numbers] == words


def test_the_most_frequent_words_have_numbers():
    vocabulary = Vocabulary.frequent([["b", "a", "b"], ["c", "a", "b"]], 2)
    assert vocabulary.symbols == ("a", "b")
    assert vocabulary.numbers(["c", "a", "b"], 1).tolist() == [0, 1, 2]
    assert vocabulary.numbers(["c", "a", "b"], 2).tolist() == [1, 2, 3]


def test_a_text_without_a_word_is_one_unknown_word():
    assert Vocabulary("a").numbers([], 1).tolist() == [0]


def test_unknown_symbols_are_named_with_file_and_place():
    with pytest.raises(
        BrokenFileError, match="some/file has the character 'c' in line 1, column 3"
    ):
        Vocabulary("aπ").characters("aπc", "aπc", "some/file")
    with pytest.raises(BrokenFileError, match="some/file has the word 'at' in line 2, column 1"):
        Vocabulary(["cat"]).words(["cat", "at"], "cat\nat", "some/file")


def test_another_vocabulary_is_refused():
    vocabulary = Vocabulary("abc")
    vocabulary.check_same(["a", "b", "c"], "f")
    with pytest.raises(ValueError, match=r"vocabulary of f \(3 symbols\).*2 symbols.*such as 'c'"):
        vocabulary.check_same(["a", "b"], "f")
    with pytest.raises(ValueError, match="1 that the file does not have, such as 'd'"):
        vocabulary.check_same(["a", "b", "c", "d"], "f")
