import pytest

from rnnorm.experiments.data.questions.question import (
    Question,
    check_question,
    is_word,
    most_relevant,
    same_stories,
    with_blank,
)


def question(*sentences, query="where is mary ?", answer="hall"):
    return Question([s.split() for s in sentences], query.split(), answer, "some/file, line 3")


def kept(asked, sentences):
    return [" ".join(s) for s in most_relevant(asked, sentences).sentences]


def test_the_sentences_with_most_words_in_common_stay_in_their_order():
    asked = question("mary sat .", "it is late .", "a dog ?", "is mary here ?", "no .")
    assert kept(asked, 2) == ["mary sat .", "is mary here ?"]
    assert kept(asked, 3) == ["mary sat .", "it is late .", "is mary here ?"]
    assert kept(asked, 9) == [" ".join(s) for s in asked.sentences]


def test_punctuation_and_repeats_are_not_in_common():
    assert kept(question("? ? ?", "mary", "mary mary mary is"), 1) == ["mary mary mary is"]
    assert kept(question("? where", "mary mary", query="mary where ?"), 1) == ["? where"]


@pytest.mark.parametrize("word", [".", "“", "……", "--", "''"])
def test_punctuation_is_no_word(word):
    assert not is_word(word)


@pytest.mark.parametrize("word", ["mary", "3", "老虎", "don't", "@entity3"])
def test_words(word):
    assert is_word(word)


def test_a_blank_without_a_space_beside_it_is_a_word():
    assert with_blank("“XXXXX 就") == ["“", "XXXXX", "就"]


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (question(), "document"),
        (question("", ""), "document"),
        (question("a b", query=""), "query"),
        (question("a b", answer=""), "answer"),
    ],
)
def test_an_empty_part_is_refused_by_name(broken, what):
    with pytest.raises(ValueError, match=f"some/file, line 3: the {what} is empty"):
        check_question(broken)


def test_texts_that_share_a_long_sentence_are_one_story():
    a, b, c = "one two three", "four five six", "seven eight nine"
    asked = [question(a), question(b, c), question("x y"), question(a, b), question("x y")]
    stories = [q.story for q in same_stories(asked, words=3)]
    assert stories[0] == stories[1] == stories[3]
    assert len(set(stories)) == 3
    assert [q.sentences for q in same_stories(asked, 3)] == [q.sentences for q in asked]
