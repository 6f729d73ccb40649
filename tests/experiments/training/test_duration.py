import pytest

from rnnorm.experiments.console import counted, duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "1 s"),
        (60, "60 s"),
        (100, "2 min"),
        (3600, "60 min"),
        (3 * 3600, "3 h"),
        (3 * 86400, "3 days"),
    ],
)
def test_it_is_as_a_person_says_it(seconds, said):
    assert duration(seconds) == said


def test_one_step_is_no_steps():
    assert [counted(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
