import torch

from rnnorm.experiments.data.text.parallel import ParallelBatches
from rnnorm.experiments.data.text.vocabulary import END, UNKNOWN, Vocabulary, WordNumbers


def test_the_most_frequent_words_have_numbers_behind_the_end_and_the_unknown_word():
    numbers = WordNumbers(Vocabulary.frequent([["b", "a"], ["b", "c"], ["a"]], 2))
    assert numbers.vocabulary.symbols == ("a", "b")
    assert len(numbers) == 4
    assert numbers.numbers(["c", "b", "a"]).tolist() == [UNKNOWN, 3, 2]


def test_a_sentence_is_what_stands_before_the_end():
    numbers = WordNumbers(Vocabulary("ab"))
    assert numbers.sentence([3, UNKNOWN, 2, END, 2]) == "b <unk> a"
    assert numbers.sentence([END]) == ""


def test_minibatches_are_padded_and_know_their_lengths():
    pairs = [(torch.full((n,), n), torch.full((n + 1,), n)) for n in (3, 1, 2)]
    (batch,) = ParallelBatches(pairs, 3)
    assert batch.source.T.tolist() == [[3, 3, 3], [1, 0, 0], [2, 2, 0]]
    assert batch.source_lengths.tolist() == [3, 1, 2]
    assert batch.target.shape == (4, 3)
    assert batch.target_lengths.tolist() == [4, 2, 3]
    drawn = [int(batch.source_lengths) for batch in ParallelBatches(pairs, 1, seed=1)]
    assert sorted(drawn) == [1, 2, 3]
