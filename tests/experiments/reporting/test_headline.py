from pathlib import Path

import pytest

from rnnorm.experiments.comparing.entry import Entry
from rnnorm.experiments.reporting.table import headline
from rnnorm.experiments.trained.curve import Curve
from rnnorm.experiments.training.score import Score

ACCURACY = Score("accuracy", "max")
CONFIG = {"data": {"class_path": "Pixels"}, "trainer": {"max_epochs": 3, "max_steps": -1}}


def of(score, *runs, config=CONFIG, diverged=()):
    """What is said of trainings ``(model, seed, values)`` with a validation every 10 steps."""
    entries = [Entry(model, seed, Path(), config, score) for model, seed, _ in runs]
    curves = [
        Curve(
            model,
            seed,
            [10 * (i + 1) for i in range(len(v))],
            [float(i) for i in range(len(v))],
            v,
            diverged=(model, seed) in diverged,
        )
        for model, seed, v in runs
    ]
    return headline(entries, curves)


def test_the_winner_is_named_with_by_how_much_and_at_what_budget():
    said = of(ACCURACY, ("a", 1, [20.0, 50.0]), ("b", 1, [60.0, 62.5]))
    assert said.title == "b wins by 12.5 points in validation accuracy"
    assert said.text == (
        "Best validation accuracy within 20 training steps: b 62.5\u00a0%, a 50.0\u00a0%."
    )


def test_the_smaller_perplexity_wins():
    said = of(Score("perplexity", "min"), ("a", 1, [120.0]), ("b", 1, [123.5]))
    assert said.title == "a wins by 3.5 in validation perplexity"


def test_the_longer_training_is_compared_as_far_as_the_other_goes():
    said = of(ACCURACY, ("a", 1, [20.0, 99.0]), ("b", 1, [30.0]))
    assert said.title == "b wins by 10 points in validation accuracy"
    assert "within 10 training steps" in said.text


@pytest.mark.parametrize(("last", "overlap"), [(39.0, True), (41.0, False)])
def test_seeds_that_overlap_are_said(last, overlap):
    runs = [("a", 1, [30.0]), ("a", 2, [40.0]), ("b", 1, [50.0]), ("b", 2, [last])]
    said = of(ACCURACY, *runs)
    assert said.title.startswith("b wins")
    assert "Mean and standard deviation of 2 seeds." in said.text
    assert ("Those of b and a overlap." in said.text) is overlap


@pytest.mark.parametrize(("last", "overlap"), [(3.1, True), (2.9, False)])
def test_seeds_of_a_score_that_is_better_lower_overlap_too(last, overlap):
    runs = [("a", 1, [4.0]), ("a", 2, [3.0]), ("b", 1, [1.0]), ("b", 2, [last])]
    said = of(Score("perplexity", "min"), *runs)
    assert said.title.startswith("b wins")
    assert ("Those of b and a overlap." in said.text) is overlap


def test_a_training_that_diverged_does_not_win():
    runs = [("a", 1, [20.0, 50.0]), ("b", 1, [60.0]), ("c", 1, [30.0, 40.0])]
    said = of(ACCURACY, *runs, diverged=[("b", 1)])
    assert said.title == "a wins by 10 points in validation accuracy"
    assert said.text == (
        "Best validation accuracy within 20 training steps: a 50.0\u00a0%, c 40.0\u00a0%. "
        "b diverged."
    )


def test_the_only_one_that_did_not_diverge_has_its_score():
    said = of(ACCURACY, ("a", 1, [20.0, 50.0]), ("b", 1, []), diverged=[("b", 1)])
    assert said == (
        "a: validation accuracy 50.0\u00a0%",
        "The best within 20 training steps. b diverged.",
    )


def test_a_model_of_which_a_seed_diverged_does_not_win():
    runs = [("a", 1, [20.0]), ("a", 2, [30.0]), ("b", 1, [40.0]), ("b", 2, [50.0])]
    said = of(ACCURACY, *runs, diverged=[("b", 2)])
    assert said.title.startswith("a: ")
    assert said.text.endswith("b diverged with seed 2.")


def test_where_all_diverged_nobody_wins():
    runs = [("a", 1, [30.0]), ("b", 1, [40.0])]
    said = of(ACCURACY, *runs, diverged=[("a", 1), ("b", 1)])
    assert said == ("a, b", "No winner is named: all diverged.")


def test_a_single_model_that_diverged_keeps_its_score():
    said = of(ACCURACY, ("a", 1, [30.0]), diverged=[("a", 1)])
    assert said == (
        "a: validation accuracy 30.0\u00a0%",
        "The best within 10 training steps. a diverged.",
    )


def test_equal_scores_have_no_winner():
    said = of(ACCURACY, ("a", 1, [30.0]), ("b", 1, [30.0]))
    assert said.title == "a and b are equal in validation accuracy"


def test_one_model_has_its_score():
    said = of(ACCURACY, ("a", 1, [30.0, 20.0]))
    assert said == ("a: validation accuracy 30.0\u00a0%", "The best within 20 training steps.")


def test_what_cannot_be_compared_has_no_winner_but_a_reason():
    said = of(ACCURACY, ("a", 1, [30.0]), ("b", 2, [40.0]))
    assert said.title == "a, b"
    assert said.text == "No winner is named: a and b cannot be compared: seeds is [1] and [2]."


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "There is no validation that all have."),
        ([float("nan")], "No winner is named: a score is not finite."),
    ],
)
def test_without_a_score_of_each_there_is_no_winner(values, text):
    assert of(ACCURACY, ("a", 1, [30.0]), ("b", 1, values)) == ("a, b", text)
