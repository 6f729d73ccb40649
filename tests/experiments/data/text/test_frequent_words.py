from rnnorm.experiments.data.text.frequent_words import (
    UNKNOWN,
    frequent_words,
    numbers_of,
    split_words,
)


def test_words_and_signs_are_split():
    assert split_words("Don't: a 'so-so' film &amp; :-)") == [
        *("don't", ":", "a", "'", "so", "-", "so", "'", "film", "&", ":-)")
    ]


def test_the_most_frequent_words_have_numbers():
    vocabulary = frequent_words([["a", "b", "a"], ["c", "b", "a"]], 2)
    assert vocabulary.symbols == ("a", "b")
    assert numbers_of(["c", "a", "b"], vocabulary).tolist() == [UNKNOWN, 1, 2]


def test_a_text_without_a_word_is_one_unknown_word():
    assert numbers_of([], frequent_words([["a"]], 5)).tolist() == [UNKNOWN]
