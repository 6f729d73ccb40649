import pytest
import torch

from rnnorm.diagnostics import plot_posteriors


def posteriors():
    """Class 5, then 2; class 1 comes near once; the others never do."""
    given = torch.full((6, 8), 0.01)
    given[:3, 5] = 0.9
    given[3:, 2] = 0.9
    given[4, 1] = 0.3
    return given


def test_classes_that_matter_in_the_order_in_which_they_come(axes):
    plot_posteriors(axes, posteriors())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["5", "2", "1"]
    (image,) = axes.images
    assert image.get_array().tolist() == posteriors()[:, [5, 2, 1]].T.tolist()
    assert not axes.lines


def test_the_target_is_drawn_over_them_even_where_it_has_no_posterior(axes):
    plot_posteriors(axes, posteriors(), torch.tensor([5, 5, 7, 2, 2, 2]))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["5", "7", "2", "1"]
    (line,) = axes.lines
    assert line.get_ydata().tolist() == [0, 0, 1, 2, 2, 2]
    assert line.get_xdata().tolist() == list(range(6))


def test_a_target_that_comes_back_stays_in_its_row(axes):
    plot_posteriors(axes, posteriors(), torch.tensor([2, 5, 2, 2, 5, 2]))
    assert axes.lines[0].get_ydata().tolist() == [0, 1, 0, 0, 1, 0]


def test_many_classes_get_as_many_names_as_there_is_room(axes):
    plot_posteriors(axes, torch.eye(100), torch.arange(100))
    assert len(axes.images[0].get_array()) == 100
    assert len(axes.get_yticks()) <= 12


@pytest.mark.parametrize("shape", [(6,), (6, 2, 2), (0, 3)])
def test_posteriors_of_another_shape(axes, shape):
    with pytest.raises(ValueError, match=r"posteriors must be \(T, C\), got"):
        plot_posteriors(axes, torch.zeros(shape))


def test_targets_of_another_length(axes):
    with pytest.raises(ValueError, match=r"targets must be \(6,\), one for each frame, got \(5,\)"):
        plot_posteriors(axes, posteriors(), torch.zeros(5))
