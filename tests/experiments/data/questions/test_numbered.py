import pytest

from rnnorm.experiments.data.questions.encode import Numbering, read_raw
from rnnorm.experiments.data.questions.question import BLANK, Question, is_word


def question(document, query, answer):
    return Question([document.split()], query.split(), answer, "file")


TRAIN = [
    question("the cat sat . the dog ran .", f"{BLANK} sat .", "cat"),
    question("the cat ran .", f"the {BLANK} ran .", "cat"),
]
TEST = question("the wolf ate the fox , the fox .", f"{BLANK} ate fox owl", "wolf")


def numbered(asked, size=None, placeholders=3, **arguments):
    words = {}
    raw, (other,) = read_raw(TRAIN, words), read_raw([asked], words)
    given = {"possible": lambda w: is_word(w) and w != BLANK, "anonymous": False} | arguments
    numbering = Numbering(words, raw, size, placeholders, **given)
    return numbering, numbering.question(other)


def names(numbering, numbers):
    return [numbering.name(int(number)) for number in numbers]


def test_words_of_the_training_questions_are_the_vocabulary():
    numbering, _ = numbered(TEST)
    assert set(numbering.vocabulary.symbols) == {"the", "cat", "sat", ".", "dog", "ran", BLANK}
    assert len(numbering) == 7 + 1 + 3


def test_the_most_frequent_words_stay():
    numbering, _ = numbered(TEST, size=4)
    assert set(numbering.vocabulary.symbols) == {"the", ".", "ran", BLANK}


def test_words_that_it_lacks_are_placeholders_the_same_in_a_text_and_its_query():
    numbering, asked = numbered(TEST)
    document = ["the", "@0", "@1", "the", "@2", "<unknown>", "the", "@2", "."]
    assert names(numbering, asked.document) == document
    assert names(numbering, asked.query) == [BLANK, "@1", "@2", "<unknown>"]
    assert names(numbering, asked.candidates) == ["the", "@0", "@1", "@2"]
    assert names(numbering, asked.candidates)[asked.answer] == "@0"
    assert asked.placeholders == 3


@pytest.mark.parametrize(("placeholders", "answer"), [(3, 1), (1, 1), (0, -1)])
def test_an_answer_behind_the_last_placeholder_is_not_there(placeholders, answer):
    _, asked = numbered(TEST, placeholders=placeholders)
    assert asked.answer == answer
    assert asked.placeholders == placeholders


@pytest.mark.parametrize("answer", ["dog", "bird", ".", BLANK])
def test_an_answer_that_is_not_in_the_document_or_no_word_is_none(answer):
    _, asked = numbered(question(f"the cat . {BLANK}", f"{BLANK} sat", answer))
    assert asked.answer == -1


def test_anonymous_answers_are_placeholders_also_where_they_are_frequent():
    numbering, asked = numbered(TRAIN[0], possible=lambda w: w in ("cat", "dog"), anonymous=True)
    assert "cat" not in numbering.vocabulary.symbols
    assert names(numbering, asked.document) == ["the", "@0", "sat", ".", "the", "@1", "ran", "."]
    assert names(numbering, asked.candidates) == ["@0", "@1"]
    assert asked.answer == 0
    _, other = numbered(TEST, possible=lambda w: w in ("cat", "dog"), anonymous=True)
    assert len(other.candidates) == 0
