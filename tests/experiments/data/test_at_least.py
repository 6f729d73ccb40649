from typing import Literal

import pytest

from rnnorm.experiments.console import check_at_least
from rnnorm.experiments.recipe.values import check_choices


@pytest.mark.parametrize("number", [0, -3, 0.5, float("nan")])
def test_a_number_that_is_too_small_is_refused_by_its_name(number):
    with pytest.raises(ValueError, match=f"^rows must be at least 1, got {number}$"):
        check_at_least(1, epochs=1, rows=number)


def test_none_is_no_number():
    check_at_least(1, epochs=None, rows=1, seconds=float("inf"))


class Base:
    def __init__(self, way: Literal["up", "down"], pace: Literal["a", "b", "c"] = "a"):
        pass


class Wider(Base):
    def __init__(self, way: Literal["up", "down", "left"]):
        super().__init__("up")


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Base, {"way": "left"}, "^way must be 'up' or 'down', got 'left'$"),
        (Base, {"way": "up", "pace": "d"}, "^pace must be one of 'a', 'b' or 'c', got 'd'$"),
        (Wider, {"way": "right"}, "^way must be one of 'up', 'down' or 'left', got 'right'$"),
    ],
)
def test_a_name_that_its_type_does_not_list_is_refused(kind, given, said):
    with pytest.raises(ValueError, match=said):
        check_choices(kind, given)


def test_a_subclass_may_take_more_names_than_its_base():
    check_choices(Wider, {"way": "left"})
