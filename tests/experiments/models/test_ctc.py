import itertools
import math

import pytest
import torch
from torch.nn.functional import ctc_loss

from rnnorm.experiments.models.ctc import best_path, best_prefix, read_off, summed_ctc


def scores(steps=4, rows=3, symbols=3, seed=0):
    torch.manual_seed(seed)
    return torch.randn(steps, rows, symbols, dtype=torch.float64) * 2


def test_a_path_without_repetitions_and_blanks_is_what_was_said():
    assert best_path([0, 1, 1, 0, 1, 2, 2, 0]) == [1, 1, 2]
    assert best_path([0, 0]) == best_path([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_that_keeps_all_sums_over_all_paths(seed):
    logs = scores(5, 1, 3, seed)[:, 0].log_softmax(1)
    sums = {}
    for path in itertools.product(range(3), repeat=5):
        said = tuple(best_path(path))
        probability = math.exp(sum(float(logs[t, c]) for t, c in enumerate(path)))
        sums[said] = sums.get(said, 0) + probability
    assert sum(sums.values()) == pytest.approx(1)
    assert tuple(best_prefix(logs.tolist(), 10_000)) == max(sums, key=sums.get)


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_the_best_path(seed):
    found = scores(30, 4, 5, seed)
    lengths = torch.tensor([30, 11, 1, 20])
    rows = found.log_softmax(2).transpose(0, 1).tolist()
    beams = [best_prefix(row[:n], 1) for row, n in zip(rows, lengths.tolist(), strict=True)]
    assert read_off(found, lengths) == beams


def test_some_prefixes_are_more_probable_than_the_best_path():
    logs = torch.tensor([[0.4, 0.35, 0.25], [0.4, 0.35, 0.25]]).log()
    assert best_path(logs.argmax(1).tolist()) == []
    assert best_prefix(logs.tolist(), 10) == [1]


@pytest.mark.parametrize("beam", [1, 4])
def test_what_is_behind_the_end_is_not_read(beam):
    found, lengths = scores(8), torch.tensor([8, 3, 5])
    changed = found.clone()
    changed[3:, 1] = 9
    changed[5:, 2] = float("nan")
    assert read_off(found, lengths, beam) == read_off(changed, lengths, beam)


def test_no_beam_is_an_error():
    with pytest.raises(ValueError, match="beam must be at least 1, got 0"):
        read_off(scores(), torch.tensor([4, 4, 4]), 0)


def test_the_loss_is_that_of_the_rows_with_a_target():
    found, lengths = scores(6), torch.tensor([6, 4, 5])
    targets, counts = torch.tensor([[1, 2], [0, 0], [2, 0]]), torch.tensor([2, 0, 1])
    each = [
        ctc_loss(
            found[: lengths[i], i : i + 1].log_softmax(2),
            targets[i : i + 1, : counts[i]],
            lengths[i : i + 1],
            counts[i : i + 1],
            reduction="sum",
        )
        for i in (0, 2)
    ]
    torch.testing.assert_close(summed_ctc(found, lengths, targets, counts), sum(each))
    nothing = summed_ctc(found.requires_grad_(), lengths, targets, torch.zeros(3, dtype=torch.long))
    nothing.backward()
    assert nothing == 0
    assert not found.grad.any()


def test_the_loss_of_half_precision_is_computed_in_single():
    torch.manual_seed(0)
    scores = torch.randn(6, 2, 4).bfloat16().requires_grad_()
    given = torch.tensor([6, 5]), torch.tensor([[1, 2], [3, 0]]), torch.tensor([2, 1])
    loss = summed_ctc(scores, *given)
    torch.testing.assert_close(loss, summed_ctc(scores.float(), *given))
    loss.backward()
    assert scores.grad.isfinite().all()
