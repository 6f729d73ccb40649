import pytest
import torch

from rnnorm.diagnostics import plot_strokes

CROSS = torch.tensor([[9.0, 9, 0], [10, 0, 1], [-5, -5, 0], [0, 10, 2]])


def lines(axes):
    return [list(zip(*line.get_data(), strict=True)) for line in axes.lines]


def test_a_line_is_drawn_where_the_pen_is_down(axes):
    plot_strokes(axes, [CROSS])
    assert lines(axes) == [[(-5, 0), (5, 0)], [(0, -5), (0, 5)]]
    low, high = axes.get_ylim()
    # y goes downwards
    assert low > high


def test_a_stroke_of_one_point_is_a_dot(axes):
    plot_strokes(axes, [torch.tensor([[0.0, 0, 0], [0, 4, 1], [0, -6, 2]]), torch.ones(1, 3)])
    assert [len(line) for line in lines(axes)] == [2, 1, 1]
    assert [line.get_marker() for line in axes.lines] == ["None", ".", "."]


def test_drawings_stand_beside_each_other_and_in_rows(axes):
    plot_strokes(axes, [CROSS] * 3, columns=2)
    starts = [line[0] for line in lines(axes)[::2]]
    assert starts == [(-5, 0), (7, 0), (-5, 12)]


def test_what_was_given_is_grey(axes):
    plot_strokes(axes, [CROSS], given=2)
    assert [line.get_color() for line in axes.lines] == ["0.6", "black"]


def test_a_boundary_changes_the_colour_behind_its_point(axes):
    boundaries = [torch.tensor([0, 1, 0, 1]), torch.tensor([0.9, 0.1, 0.4, 0])]
    line = torch.tensor([[0.0, 0, 0]] + [[1, 0, 0]] * 2 + [[1, 0, 2]])
    plot_strokes(axes, [line, line], boundaries=boundaries)
    assert [line.get_color() for line in axes.lines] == ["C0", "C1", "C1", "C1", "C1", "C1"]
    axes.clear()
    dots = torch.tensor([[0.0, 0, 1], [1, 0, 1], [1, 0, 2]])
    plot_strokes(axes, [dots], boundaries=[torch.tensor([0.0, 1, 0])])
    assert [line.get_color() for line in axes.lines] == ["C0", "C0", "C1"]
    with pytest.raises(ValueError, match=r"boundaries must be \[\(4,\)\].* got \[\(3,\)\]"):
        plot_strokes(axes, [line], boundaries=[torch.zeros(3)])


def test_what_is_no_drawing_is_an_error(axes):
    with pytest.raises(ValueError, match="drawings must have one or more"):
        plot_strokes(axes, [])
    for points in (torch.zeros(0, 3), torch.zeros(4, 2), torch.zeros(3)):
        with pytest.raises(ValueError, match=r"drawings must be \(N, 3\) each"):
            plot_strokes(axes, [points])
