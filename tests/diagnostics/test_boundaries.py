import pytest
import torch

import rnnorm
from rnnorm.diagnostics import plot_boundaries


def cells(axes):
    return axes.collections[0].get_array()


def test_every_boundary_stands_above_its_symbol_in_the_row_of_its_layer(axes):
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    plot_boundaries(axes, z, "a $")
    assert cells(axes).reshape(2, 3).tolist() == [[0, 1, 1], [0, 0, 1]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", " ", "$"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 1", "layer 2"]
    assert axes.get_ylim() == (0, 2)


def test_a_models_boundaries_are_drawn(axes):
    model = rnnorm.HMLSTM(3, 4, boundary="soft")
    _, _, boundaries = model(torch.randn(7, 2, 3))
    plot_boundaries(axes, boundaries.z[:, 1])
    drawn = torch.as_tensor(cells(axes).data).reshape(2, 7)
    torch.testing.assert_close(drawn.float(), boundaries.z[:, 1].detach().T)
    assert axes.get_xlabel() == "time step t"


def test_drawing_does_not_warn_whatever_the_symbols(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    plot_boundaries(figure.subplots(), torch.ones(4, 1), ["$", "a_{b}", "$", "_"])
    figure.savefig(tmp_path / "z.svg")


def test_what_is_no_sequence_is_an_error(axes):
    for z in (torch.zeros(3), torch.zeros(3, 2, 2), torch.zeros(3, 0)):
        with pytest.raises(ValueError, match=r"z must be \(T, L - 1\)"):
            plot_boundaries(axes, z)
    with pytest.raises(ValueError, match="symbols must be 3, one for each step, got 2"):
        plot_boundaries(axes, torch.zeros(3, 2), "ab")
