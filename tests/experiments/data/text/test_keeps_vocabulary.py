import pytest

from rnnorm.experiments.data.text.vocabulary import KeepsVocabulary, Vocabulary


def data(symbols):
    made = KeepsVocabulary()
    made.vocabulary, made.source = Vocabulary(symbols), "the text"
    return made


def test_a_checkpoint_keeps_the_symbols_in_order():
    state = data("ba").state_dict()
    assert state == {"vocabulary": ["a", "b"]}
    data("ab").load_state_dict(state)
    data("ab").load_state_dict({})


def test_a_checkpoint_of_other_symbols_is_refused():
    with pytest.raises(
        ValueError, match=r"of the text \(2 symbols\) is not that of the checkpoint"
    ):
        data("ac").load_state_dict(data("ab").state_dict())
