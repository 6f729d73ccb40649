from itertools import pairwise

import pytest
import torch

from rnnorm.diagnostics import plot_attention


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_every_word_stands_there_in_order_and_is_coloured_by_its_weight(axes):
    words = ["mary", "went", "to", "the", "hall"]
    plot_attention(axes, words, torch.tensor([0.1, 0.0, 0.2, 0.3, 0.4]))
    assert texts(axes) == words
    assert [p.get_alpha() for p in axes.patches] == pytest.approx([0.25, 0, 0.5, 0.75, 1])


@pytest.mark.parametrize("count", [1, 40, 1500])
def test_words_lie_apart_and_inside(axes, count):
    plot_attention(axes, [f"word{i}" for i in range(count)], torch.ones(count))
    boxes = [p.get_bbox() for p in axes.patches]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert len(boxes) == count
    assert all(left <= b.x0 < b.x1 <= right and top <= b.y0 < b.y1 <= bottom for b in boxes)
    places = [(b.y0, b.x0, b.x1) for b in boxes]
    assert places == sorted(places)
    assert all(a[0] < b[0] or a[2] < b[1] for a, b in pairwise(places))


def test_drawing_does_not_warn_whatever_the_characters(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    words = ["老虎", "，", "$", "a_{b}", "$", "\U0001f42f", "老虎", "na\u00efve"]
    plot_attention(figure.subplots(), words, torch.ones(len(words)))
    for ending in ("png", "svg"):
        figure.savefig(tmp_path / f"a.{ending}")
    assert texts(figure.axes[0])[2:5] == ["$", "a_{b}", "$"]


def test_a_word_that_no_font_has_is_numbered_the_same_everywhere(axes, monkeypatch):
    monkeypatch.setattr("matplotlib.font_manager.fontManager.ttflist", [])
    plot_attention(axes, ["a", "老虎", "b", "狐狸", "老虎"], torch.ones(5))
    assert texts(axes) == ["a", "#2", "b", "#4", "#2"]


@pytest.mark.parametrize("words", [[], ["a", "b"]])
def test_each_word_has_a_weight(axes, words):
    with pytest.raises(ValueError, match="one for each of at least one word"):
        plot_attention(axes, words, torch.ones(3))
    assert not axes.texts


def test_weights_of_zero_are_drawn(axes):
    plot_attention(axes, ["a", "b"], torch.zeros(2))
    assert [p.get_alpha() for p in axes.patches] == [0, 0]
