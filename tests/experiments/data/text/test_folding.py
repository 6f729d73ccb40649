from collections import Counter

import pytest
import torch

from rnnorm.experiments.data.text.sentences import fold


def sentences(lengths):
    """Sentences whose symbols are all different."""
    ends = torch.tensor(lengths).cumsum(0)
    return list(torch.arange(int(ends[-1])).tensor_split(ends[:-1]))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_every_sentence_appears_once_and_whole(count):
    lengths = [3 + i * i % 17 for i in range(count)]
    given = sentences(lengths)
    folded = fold(given)
    assert len(folded) == -(-count // 2)
    assert sorted(torch.cat(folded).tolist()) == list(range(sum(lengths)))
    text = [sequence.tolist() for sequence in folded]
    for sentence in given:
        at = [s.index(int(sentence[0])) for s in text if int(sentence[0]) in s]
        whole = next(s for s in text if int(sentence[0]) in s)
        assert whole[at[0] : at[0] + len(sentence)] == sentence.tolist()


def test_the_shortest_and_the_longest_and_so_on_inwards():
    folded = fold(sentences([5, 1, 9, 3, 7]))
    assert [len(s) for s in folded] == [1 + 9, 3 + 7, 5]
    assert folded[0].tolist() == [5, *range(6, 15)]


def test_lengths_become_nearly_equal():
    # lengths 2 to 101, each once
    folded = fold(sentences([2 + i * 37 % 100 for i in range(100)]))
    assert Counter(len(s) for s in folded) == {103: 50}
