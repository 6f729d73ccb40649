from xml.etree import ElementTree

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from rnnorm.experiments.comparing.picture import draw
from rnnorm.experiments.trained.curve import Curve

# what matplotlib, XML and a legend would take for something else
NAMES = [
    "$x$",
    r"$\frac{a$",
    r"a\$b$c$",
    "_x",
    "<b>&",
    "a|b",
    "%s{}",
    "é 日本 😀",
    "a\nb",
    "x" * 300,
]
CURVES = [
    Curve("LSTM", 1, [10, 20], [1.0, 2.0], [20.0, 50.0]),
    Curve("carry", 1, [], [], [], diverged=1),
    Curve("once", 1, [10], [1.0], [20.0]),
]


def test_the_goal_is_a_line_in_both_panels(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw(CURVES, tmp_path / "a.png", label="accuracy, %", goal=45)
    goals = [[line.get_ydata() for line in axes.lines][-1] for axes in drawn[0].axes]
    assert goals == [[45, 45], [45, 45]]


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_name_is_drawn_as_it_is(tmp_path, kind):
    curves = [Curve(name, 1, [10, 20], [1.0, 2.0], [20.0, 50.0]) for name in NAMES]
    path = tmp_path / f"a.{kind}"
    with rc_context({"svg.fonttype": "none"}):
        draw(curves, path, label="$a$, %", title="$b$ $")
    if kind == "svg":
        drawn = "".join(
            "".join(t.itertext()) for t in ElementTree.parse(path).iter() if "text" in t.tag
        )
        for name in ("$a$, %", "$b$ $", *NAMES[:-2], "a b"):
            assert name in drawn, name


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("new/a.svg", b"<?xml")])
def test_the_picture_is_of_the_kind_that_its_name_says(tmp_path, name, start):
    draw(CURVES, tmp_path / name, label="accuracy, %", title="Two", goal=45)
    assert (tmp_path / name).read_bytes().startswith(start)
