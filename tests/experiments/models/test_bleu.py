import pytest
import torch
from sacrebleu.metrics import BLEU
from torch.nn.utils.rnn import pad_sequence

from rnnorm.experiments.models.bleu import CorpusBleu, sentence_bleu, signature

ABC = "abcdefgh"


def numbered(sentences):
    """Words ``a`` to ``h`` as numbers from 2 on, and ``?`` as the unknown word."""
    rows = [[1 if w == "?" else 2 + ABC.index(w) for w in s] + [0] for s in sentences]
    return pad_sequence([torch.tensor(row) for row in rows])


WRITTEN = ["abcdefg", "bacd", "", "abc?e", "hhhh"]
REFERENCE = ["abcdefgh", "abcd", "ab", "abc?e", "hhhhh"]


def sacrebleu(written, reference):
    # an unknown word stands for any: it is another one in the reference
    words = [" ".join(s) for s in written]
    return words, [" ".join(s).replace("?", "!") for s in reference]


@pytest.mark.parametrize("count", ["update", "forward"])
def test_of_numbers_it_is_that_of_words(count):
    bleu = CorpusBleu()
    for part in (slice(0, 2), slice(2, 5)):
        getattr(bleu, count)(numbered(WRITTEN[part]), numbered(REFERENCE[part]))
    words, reference = sacrebleu(WRITTEN, REFERENCE)
    expected = BLEU(tokenize="none").corpus_score(words, [reference])
    assert float(bleu.compute()) == pytest.approx(expected.score)
    assert 10 < expected.score < 90


def test_of_sentences():
    words, reference = sacrebleu(WRITTEN, REFERENCE)
    one = BLEU(tokenize="none", effective_order=True)
    expected = [
        one.sentence_score(w, [r]).score / 100 for w, r in zip(words, reference, strict=True)
    ]
    found = sentence_bleu(numbered(WRITTEN), numbered(REFERENCE))
    torch.testing.assert_close(found, torch.tensor(expected))
    assert float(sentence_bleu(numbered(["abc"]), numbered(["abc"]))) == pytest.approx(1)
    assert float(found[3]) < 1


def test_the_signature_says_how():
    assert signature().startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2")


def test_processes_that_all_count_every_row_have_the_score_of_one():
    metric = CorpusBleu()
    # no three words in a row are right
    metric.update(torch.tensor([[3], [4], [5], [6]]), torch.tensor([[3], [4], [6], [5]]))
    alone = metric.compute()
    assert alone > 0
    for name, reduce in metric._reductions.items():
        setattr(metric, name, reduce(torch.stack(2 * [getattr(metric, name)])))
    metric._computed = None
    assert metric.compute() == alone
