import pytest

from rnnorm.experiments.console import check_at_least


@pytest.mark.parametrize("number", [0, -3, 0.5, float("nan")])
def test_a_number_that_is_too_small_is_refused_by_its_name(number):
    with pytest.raises(ValueError, match=f"^rows must be at least 1, got {number}$"):
        check_at_least(1, epochs=1, rows=number)


def test_none_is_no_number():
    check_at_least(1, epochs=None, rows=1, seconds=float("inf"))
