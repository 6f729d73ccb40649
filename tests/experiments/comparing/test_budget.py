import math
from dataclasses import replace

import pytest

from rnnorm.experiments.comparing.budget import Budget
from rnnorm.experiments.trained.curve import Curve

CURVE = Curve("a", 1, [10, 20, 30], [31.0, 61.0, 91.0], [1.0, 2.0, 3.0], [1, 2, 3])
# three validations an epoch
OFTEN = replace(CURVE, epochs=[1, 1, 1])


def test_epochs_are_those_of_the_training_however_often_it_is_validated():
    assert Budget(epochs=2).cut([CURVE, OFTEN]) == [CURVE.until(2), OFTEN]
    assert Budget(epochs=9).cut([CURVE]) == [CURVE]
    seldom = replace(CURVE, epochs=[2, 4, 6])
    assert Budget(epochs=5).cut([seldom]) == [seldom.until(2)]


def test_the_step_that_uses_the_minutes_up_belongs_to_them():
    # a step takes 3 seconds: that of the second point began before the minute was over
    assert Budget(minutes=1).cut([CURVE]) == [CURVE.until(2)]
    assert Budget(minutes=0.95).cut([CURVE]) == [CURVE.until(1)]
    assert Budget(epochs=1, minutes=1).cut([CURVE]) == [CURVE.until(1)]
    # the minutes ended this training, by a step that took longer than the others
    slow = replace(CURVE, seconds=[31.0, 61.0, 191.0])
    assert Budget(minutes=1.1).cut([slow, slow], [True, False]) == [slow, slow.until(2)]


def test_without_a_budget_curves_go_as_far_as_the_shortest_that_did_not_diverge():
    short = Curve("b", 1, [10, 20], [1.0, 2.0], [1.0, 2.0])
    gone = Curve("c", 1, [], [], [], diverged=1)
    assert Budget().cut([CURVE, short, gone]) == [CURVE.until(2), short, gone]


@pytest.mark.parametrize(
    ("budget", "counts"),
    [
        (Budget(), True),
        (Budget(epochs=3), False),
        (Budget(epochs=4), True),
        (Budget(minutes=1), False),
        (Budget(minutes=2), True),
        (Budget(epochs=4, minutes=1), False),
    ],
)
def test_a_divergence_after_the_budget_does_not_count(budget, counts):
    (cut,) = budget.cut([replace(CURVE, diverged=4)])
    assert cut.diverged == (4 if counts else 0)


def test_a_divergence_within_the_last_epoch_counts_after_a_validation_of_it_too():
    (cut,) = Budget(epochs=1).cut([replace(OFTEN, diverged=1)])
    assert cut.diverged == 1


@pytest.mark.parametrize(
    "given", [{"epochs": 0}, {"minutes": 0.0}, {"minutes": math.nan}, {"minutes": math.inf}]
)
def test_nothing_to_do_is_refused(given):
    with pytest.raises(ValueError, match="must be a"):
        Budget(**given)
