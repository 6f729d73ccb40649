import math
from dataclasses import replace

import pytest

from rnnorm.experiments.trained.curve import (
    Curve,
    as_csv,
    best,
    best_point,
    by_model,
    mean_curve,
    reaches,
    read_curve,
)
from rnnorm.experiments.training.score import Score

ACCURACY, BITS = Score("accuracy", "max"), Score("bits_per_character", "min")


def test_a_run_is_read_as_it_is_shown(tmp_path):
    lines = [
        "step,epoch,seconds,name,value",
        "4,0,1.500,val/loss,2.0",
        "4,0,1.500,val/accuracy,0.25",
        "9,1,3.000,val/accuracy,0.5",
    ]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    curve = read_curve(tmp_path, ACCURACY, "mine", 3)
    assert curve == Curve("mine", 3, [5, 10], [1.5, 3.0], [25.0, 50.0], [1, 2])
    assert read_curve(tmp_path, Score("loss", "min"), "mine", 3).values == [2.0]
    (tmp_path / "metrics.csv").write_text("\n".join([*lines, "12,1,3.500,diverged,1"]) + "\n")
    assert read_curve(tmp_path, ACCURACY, "mine", 3) == replace(curve, diverged=2)


def test_training_scores_stand_beside_the_validation_of_their_step(tmp_path):
    lines = [
        "step,epoch,seconds,name,value",
        "2,0,0.500,val/accuracy,0.125",
        "4,0,1.500,val/accuracy,0.25",
        "4,0,1.500,train_epoch/accuracy,0.5",
    ]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    curve = read_curve(tmp_path, ACCURACY, "mine", 3)
    assert math.isnan(curve.trained[0])
    assert curve.trained[1] == 50.0
    assert as_csv([curve], ACCURACY).splitlines() == [
        'model,seed,step,seconds,"validation accuracy, %","training accuracy, %"',
        "mine,3,3,0.500,12.5,nan",
        "mine,3,5,1.500,25,50",
    ]


@pytest.mark.parametrize(("kind", "step"), [("max", 4), ("min", 6)])
def test_the_best_point_is_the_first_of_the_best_finite_ones(tmp_path, kind, step):
    values = {2: 0.25, 4: 0.75, 6: 0.125, 8: 0.75, 10: 0.125, 12: math.nan, 14: math.inf}
    lines = [f"{step},0,1.000,val/score,{value}" for step, value in values.items()]
    (tmp_path / "metrics.csv").write_text("\n".join(["step,epoch,seconds,name,value", *lines]))
    found = best_point(tmp_path, Score("score", kind))
    assert (found.step, found.value) == (step, values[step])


def test_a_run_without_a_validation_has_no_points(tmp_path):
    assert read_curve(tmp_path, ACCURACY, "mine", 3) == Curve("mine", 3, [], [], [])


def test_the_mean_goes_as_far_as_all_seeds_do():
    one = Curve("a", 1, [10, 20, 25], [1.0, 2.0, 2.5], [20.0, 50.0, 40.0])
    two = Curve("a", 2, [10, 20], [3.0, 4.0], [30.0, 40.0])
    assert mean_curve([one, two]) == Curve("a", 1, [10, 20], [2.0, 3.0], [25.0, 45.0])


def test_the_mean_is_of_the_same_steps():
    # the first seed went on after a smaller budget in minutes, the second began with the larger
    one = Curve("a", 1, [7, 10, 20, 31], [0.7, 1.0, 2.0, 3.0], [5.0, 20.0, 50.0, 60.0])
    two = Curve("a", 2, [10, 20, 29], [1.0, 2.0, 3.0], [30.0, 40.0, 50.0])
    mean = Curve("a", 1, [10, 20, 30], [1.0, 2.0, 3.0], [25.0, 45.0, 55.0])
    assert mean_curve([one, two]) == mean
    # where one has not come that far, or the end is within the first epoch
    assert mean_curve([one, two.until(2)]) == mean.until(2)
    early = Curve("a", 2, [9], [0.7], [15.0])
    assert mean_curve([one.until(1), early]) == Curve("a", 1, [8], [0.7], [10.0])
    assert mean_curve([one, Curve("a", 2, [], [], [])]) == Curve("a", 1, [], [], [])


def test_better_is_higher_or_lower():
    curve = Curve("a", 1, [1, 2, 3], [1, 2, 3], [1.5, 1.3, 1.4])
    assert (best(curve, ACCURACY), best(curve, BITS)) == (1.5, 1.3)
    assert (reaches(curve, ACCURACY, 1.4), reaches(curve, BITS, 1.4)) == (0, 1)
    assert reaches(curve, BITS, 1.2) is None
    lost = replace(curve, values=[math.nan, 1.3, math.inf])
    assert (best(lost, ACCURACY), best(lost, BITS)) == (1.3, 1.3)
    assert math.isnan(best(replace(curve, values=[math.nan] * 3), BITS))


def test_epochs_of_validations_within_one(tmp_path):
    ends = [(3, 0), (9, 0), (13, 1), (19, 1), (24, 2)]
    lines = [f"{step},{epoch},{step / 10:.3f},val/accuracy,0.5" for step, epoch in ends]
    text = "\n".join(["step,epoch,seconds,name,value", *lines])
    (tmp_path / "metrics.csv").write_text(f"{text}\n")
    assert read_curve(tmp_path, ACCURACY, "mine", 1).epochs == [0.4, 1, 1.4, 2, 2.5]


def test_models_keep_their_order_and_points_their_line():
    curves = [Curve(m, s, [5], [1.0], [50.0]) for m, s in (("b", 1), ("a", 1), ("b", 2))]
    assert list(by_model(curves)) == ["b", "a"]
    assert as_csv(curves, ACCURACY).splitlines() == [
        'model,seed,step,seconds,"validation accuracy, %"',
        "b,1,5,1.000,50",
        "a,1,5,1.000,50",
        "b,2,5,1.000,50",
    ]
