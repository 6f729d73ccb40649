from dataclasses import replace
from math import inf, nan

from rnnorm.experiments.comparing.table import comparison_table
from rnnorm.experiments.trained.curve import Curve
from rnnorm.experiments.training.score import Score

ACCURACY, BITS = Score("accuracy", "max"), Score("bits_per_character", "min")
STEPS = [10, 20, 30]
CURVES = [
    Curve("LSTM", 1, STEPS, [1.0, 2.0, 3.0], [20.0, 50.0, 40.0]),
    Curve("LSTM", 2, STEPS, [1.0, 2.0, 3.0], [30.0, 40.0, 60.0]),
    Curve("BN-LSTM", 1, STEPS, [2.0, 4.0, 6.0], [50.0, 60.0, 70.0]),
    Curve("BN-LSTM", 2, STEPS, [2.0, 4.0, 6.0], [40.0, 50.0, 80.0]),
    Curve("LN-LSTM", 1, STEPS, [2.0, 4.0, 6.0], [10.0, 10.0, 10.0]),
    Curve("LN-LSTM", 2, STEPS, [2.0, 4.0, 6.0], [10.0, 10.0, 10.0]),
]


def cells(line):
    return [cell.strip() for cell in line.split("   ") if cell.strip()]


def test_scores_costs_and_time_to_the_best_of_the_first_model():
    table = comparison_table(CURVES, ACCURACY).splitlines()
    assert cells(table[0])[-1] == "reaches 50.0 % after"
    rows = [cells(line) for line in table[1:4]]
    assert rows == [
        ["LSTM", "50.0 ± 14.1", "55.0 ± 7.1", "30", "100.0", "3.0 s, 30 steps"],
        ["BN-LSTM", "75.0 ± 7.1", "75.0 ± 7.1", "30", "200.0", "4.0 s, 20 steps"],
        ["LN-LSTM", "10.0 ± 0.0", "10.0 ± 0.0", "30", "200.0", "not reached"],
    ]
    assert "2 seeds" in table[-1]


def test_training_scores_have_a_column_where_runs_kept_them():
    kept = [replace(c, trained=[30.0, 60.0, 70.0 + c.seed]) for c in CURVES[:2]]
    head, lstm, bn, *_ = comparison_table([*kept, *CURVES[2:]], ACCURACY).splitlines()
    assert cells(head)[2] == "in training"
    assert cells(lstm)[3] == "71.5 ± 0.7"
    # the last validation of the second is within an epoch
    kept[1] = replace(kept[1], trained=[30.0, 60.0, nan])
    assert cells(comparison_table(kept, ACCURACY).splitlines()[1])[3] == "71.0"
    kept[1] = replace(kept[1], trained=[30.0, 60.0, inf])
    assert cells(comparison_table(kept, ACCURACY).splitlines()[1])[3] == "inf"
    assert cells(bn)[3] == "30"


def test_one_slow_training_does_not_change_the_cost_of_a_step():
    curves = [Curve("LSTM", seed, [10], [took], [1.0]) for seed, took in enumerate((1.0, 1.2, 9.0))]
    line = comparison_table(curves, ACCURACY).splitlines()[1]
    assert cells(line)[4] == "120.0"


def test_a_score_to_reach_is_given():
    curves = [
        Curve(m, 1, STEPS, [1.0, 2.0, 3.0], v) for m, v in (("a", [3, 2, 1]), ("b", [4, 3, 2]))
    ]
    table = comparison_table(curves, BITS, goal=2.0).splitlines()
    assert [cells(line)[-1] for line in table[:3]] == [
        "reaches 2 after",
        "2.0 s, 20 steps",
        "3.0 s, 30 steps",
    ]


def test_the_mean_is_of_the_seeds_that_did_not_diverge():
    seconds = [1.0, 2.0, 3.0]
    curves = [
        Curve("LSTM", 1, STEPS, seconds, [20.0, 50.0, 60.0]),
        Curve("LSTM", 2, STEPS[:1], seconds[:1], [30.0], diverged=2),
        Curve("BN-LSTM", 1, STEPS, seconds, [50.0, 70.0, 60.0]),
    ]
    table = comparison_table(curves, ACCURACY).splitlines()
    assert cells(table[0])[-1] == "reaches 60.0 % after"
    assert cells(table[1]) == [
        *("LSTM", "60.0 (1 of 2 diverged)", "60.0", "30", "100.0", "3.0 s, 30 steps"),
    ]


def test_a_training_that_diverged_is_said_to():
    curves = [
        *CURVES[:2],
        Curve("carry", 1, [], [], [], diverged=3),
        Curve("carry", 2, [9], [1.0], [7.0]),
    ]
    table = comparison_table(curves, ACCURACY).splitlines()
    assert cells(table[2])[:2] == ["carry", "7.0 (1 of 2 diverged)"]


def test_a_seed_whose_score_is_not_finite_leaves_no_deviation():
    scores = [("LSTM", 1, [inf]), ("LSTM", 2, [2.0]), ("BN-LSTM", 1, [nan]), ("BN-LSTM", 2, [3.0])]
    curves = [Curve(model, seed, [9], [1.0], values) for model, seed, values in scores]
    table = comparison_table(curves, BITS, goal=2.0).splitlines()
    assert [cells(line)[1] for line in table[1:3]] == ["inf", "nan"]
