import pytest

from rnnorm.experiments.data.fixed_tenth import fixed_tenth


def test_the_draw_is_always_the_same():
    rest, tenth = fixed_tenth("abcdefghijklmnopqrstuvwxyz")
    assert ("".join(rest), tenth) == ("orflwnstqbkzyigejhxdavpm", ["c", "u"])


@pytest.mark.parametrize(("count", "held"), [(0, 0), (1, 1), (9, 1), (20, 2), (29, 2)])
def test_every_example_is_in_one_part(count, held):
    rest, tenth = fixed_tenth(range(count))
    assert len(tenth) == held
    assert sorted(rest + tenth) == list(range(count))
