import pytest

from rnnorm.experiments.pictures import draw_curves, looks_of, styled_figure
from rnnorm.experiments.trained.curve import Curve

CURVES = [
    Curve("LSTM", 1, [10, 20], [1.0, 2.0], [20.0, 50.0]),
    Curve("LSTM", 2, [10, 20], [3.0, 4.0], [30.0, 40.0]),
    Curve("carry", 1, [], [], [], diverged=1),
    Curve("once", 1, [10], [1.0], [20.0]),
]


@pytest.mark.parametrize(("against", "x"), [("steps", [10, 20]), ("seconds", [2.0, 3.0])])
def test_the_mean_of_each_model_is_drawn_where_there_is_one(against, x):
    with styled_figure(4, 4) as figure:
        axes = figure.subplots()
        draw_curves(axes, CURVES, against, "accuracy, %")
    mean, once = axes.lines
    assert (mean.get_label(), once.get_label()) == ("LSTM", "once")
    assert list(mean.get_xdata()) == x
    assert list(mean.get_ydata()) == [25.0, 45.0]
    assert once.get_marker() == "o"
    assert (axes.get_xlabel(), axes.get_ylabel()) == (f"training {against}", "accuracy, %")


def test_training_scores_of_a_single_epoch_are_marked():
    curve = Curve("LSTM", 1, [10], [1.0], [20.0], trained=[15.0])
    with styled_figure(4, 4) as figure:
        axes = figure.subplots()
        draw_curves(axes, [curve], "steps", "accuracy, %")
    _, trained, _ = axes.lines
    assert (list(trained.get_ydata()), trained.get_marker()) == ([15.0], ".")


@pytest.mark.parametrize("second", [[], [16.0]], ids=["lost", "kept"])
def test_the_legend_names_training_scores_where_all_seeds_kept_them(second):
    curves = [Curve("LSTM", 1, [10], [1.0], [20.0], trained=[15.0])]
    curves.append(Curve("LSTM", 2, [10], [1.0], [20.0], trained=second))
    with styled_figure(4, 4) as figure:
        axes = figure.subplots()
        draw_curves(axes, curves, "steps", "accuracy, %")
    labels = [line.get_label() for line in axes.lines]
    assert ("in training" in labels) == bool(second)
    assert len(labels) == (3 if second else 1)


def test_the_band_is_from_the_lowest_to_the_highest_seed():
    curves = [*CURVES[:2], Curve("LSTM", 3, [10, 20], [1.0, 2.0], [22.0, 41.0])]
    with styled_figure(4, 4) as figure:
        axes = figure.subplots()
        draw_curves(axes, curves, "steps", "accuracy, %")
    (band,) = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(10, 20), (10, 30), (20, 40), (20, 50)}


@pytest.mark.parametrize(
    "models",
    [
        ["LSTM", "BN-LSTM", "LN-LSTM"],
        ["demo/digits-bn", "demo/digits-ln", "demo/digits-lstm"],
        ["a.yaml, norm=layer", "a.yaml, norm=batch", "lstm.yaml"],
    ],
)
def test_a_norm_has_one_colour_wherever_its_model_stands(models):
    looks = looks_of(models)
    assert list(looks) == models
    by_norm = {
        next(norm for norm in ("batch", "layer", "bn", "ln", "lstm") if norm in name.lower()): look
        for name, look in looks.items()
    }
    demo = looks_of(["LSTM", "BN-LSTM", "LN-LSTM"])
    expected = {"lstm": "LSTM", "bn": "BN-LSTM", "batch": "BN-LSTM"}
    for norm, look in by_norm.items():
        assert look == demo[expected.get(norm, "LN-LSTM")]


def test_models_of_one_norm_have_looks_of_their_own():
    looks = looks_of([f"pmnist-bn-gamma-{n}" for n in range(30)])
    assert len(set(looks.values())) == 20
