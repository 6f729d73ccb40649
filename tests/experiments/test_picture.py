from rnnorm.experiments.curve import Curve
from rnnorm.experiments.picture import draw_curves, styled_figure

CURVES = [
    Curve("LSTM", 1, [10, 20], [1.0, 2.0], [20.0, 50.0]),
    Curve("LSTM", 2, [10, 20], [3.0, 4.0], [30.0, 40.0]),
    Curve("carry", 1, [], [], [], diverged=True),
    Curve("once", 1, [10], [1.0], [20.0]),
]


def test_means_are_drawn_against_steps_and_against_seconds():
    with styled_figure(8, 4) as figure:
        draw_curves(figure, CURVES, "accuracy, %", goal=45)
    by_steps, by_seconds = figure.axes
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["LSTM", "once"]
    for axes, x in ((by_steps, [10, 20]), (by_seconds, [2.0, 3.0])):
        mean, once, goal = axes.lines
        assert list(mean.get_xdata()) == x
        assert list(mean.get_ydata()) == [25.0, 45.0]
        assert once.get_marker() == "o"
        assert list(goal.get_ydata()) == [45, 45]
    assert (by_steps.get_xlabel(), by_steps.get_ylabel()) == ("training steps", "accuracy, %")
