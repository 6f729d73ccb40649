import numpy as np
import pytest
import torch

from rnnorm.experiments.data.questions.encode import NO_CANDIDATE, NumberedQuestion, QuestionBatches

FIRST = 100


def question(i):
    """Question number i, known by its first word, with a few placeholders."""
    k = i % 5
    document = np.array([i, *range(FIRST, FIRST + k), *range(FIRST, FIRST + k), 50], np.int32)
    query = np.array([60, *range(FIRST, FIRST + k)], np.int32)
    return NumberedQuestion(document, query, np.unique(document[1:]), k, k)


QUESTIONS = [question(i) for i in range(23)]


def rows(batch):
    """The questions of a minibatch, without padding."""
    parts = (batch.x, batch.lengths), (batch.query, batch.query_lengths)
    counts = (batch.candidates != NO_CANDIDATE).sum(0)
    return [
        (
            *(part[: int(lengths[i]), i].tolist() for part, lengths in parts),
            batch.candidates[: int(counts[i]), i].tolist(),
            int(batch.answers[i]),
        )
        for i in range(len(batch.lengths))
    ]


def all_rows(loader, epoch=0):
    loader.set_epoch(epoch)
    return [row for batch in loader for row in rows(batch)]


def test_every_question_is_evaluated_once_in_the_order_given():
    read = all_rows(QuestionBatches(QUESTIONS, 4, FIRST))
    assert [row[0][0] for row in read] == list(range(23))


def test_every_question_is_trained_on_but_those_that_fill_no_minibatch():
    loader, left_out = QuestionBatches(QUESTIONS, 4, FIRST, seed=1), set()
    for epoch in range(20):
        read = {row[0][0] for row in all_rows(loader, epoch)}
        assert len(read) == 20
        left_out |= set(range(23)) - read
    assert len(left_out) > 15


@pytest.mark.parametrize("seed", [None, 1])
def test_a_shuffle_renames_placeholders_alike_in_all_parts_and_nothing_else(seed):
    for document, query, candidates, answer in all_rows(QuestionBatches(QUESTIONS, 4, FIRST, seed)):
        given = QUESTIONS[document[0]]
        k = given.placeholders
        new = document[1 : 1 + k]
        assert sorted(new) == list(range(FIRST, FIRST + k))
        assert document[1 + k : 1 + 2 * k] == new
        assert document[-1] == 50
        assert query == [60, *new]
        assert candidates == [50, *new]
        assert answer == given.answer


def test_shuffles_are_a_function_of_seed_and_epoch():
    def names(seed, epoch):
        return sorted(map(str, all_rows(QuestionBatches(QUESTIONS, 23, FIRST, seed), epoch)))

    assert names(1, 2) == names(1, 2)
    assert names(1, 2) != names(1, 3)
    assert names(1, 2) != names(2, 2)


def test_evaluation_does_not_depend_on_its_minibatches_or_the_epoch():
    one, other = (QuestionBatches(QUESTIONS, size, FIRST) for size in (4, 23))
    assert all_rows(one, 0) == all_rows(other, 3)
    assert all_rows(one) != [
        (q.document.tolist(), q.query.tolist(), q.candidates.tolist(), q.answer) for q in QUESTIONS
    ]


@pytest.mark.parametrize("done", range(6))
def test_goes_on_after_any_number_of_minibatches(done):
    whole, stopped, resumed = (QuestionBatches(QUESTIONS, 4, FIRST, seed=1) for _ in range(3))
    for loader in (whole, stopped):
        loader.set_epoch(3)
    start = [rows(b) for _, b in zip(range(done), stopped, strict=False)]
    resumed.load_state_dict(stopped.state_dict())
    iterator = iter(resumed)
    resumed.set_epoch(3)
    assert start + [rows(b) for b in iterator] == [rows(b) for b in whole]


def test_shapes():
    batch = next(iter(QuestionBatches(QUESTIONS, 4, FIRST)))
    assert batch.x.shape == (8, 4)
    assert batch.query.shape == (4, 4)
    assert batch.candidates.shape == (4, 4)
    assert all(part.dtype == torch.int64 for part in batch)


def test_questions_without_candidates_have_a_place_for_one():
    none = question(0)._replace(candidates=np.array([], np.int32), answer=-1)
    batch = next(iter(QuestionBatches([none, none], 4, FIRST)))
    assert batch.candidates.tolist() == [[NO_CANDIDATE, NO_CANDIDATE]]
