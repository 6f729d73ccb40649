import pytest

from rnnorm.experiments.data.batches import fixed_tenth, two_held_out


def test_the_draw_is_always_the_same():
    rest, tenth = fixed_tenth("abcdefghijklmnopqrstuvwxyz")
    assert ("".join(rest), tenth) == ("orflwnstqbkzyigejhxdavpm", ["c", "u"])


@pytest.mark.parametrize(("count", "held"), [(0, 0), (1, 1), (9, 1), (20, 2), (29, 2)])
def test_every_example_is_in_one_part(count, held):
    rest, tenth = fixed_tenth(range(count))
    assert len(tenth) == held
    assert sorted(rest + tenth) == list(range(count))


@pytest.mark.parametrize(("count", "share", "held"), [(3, 10, 1), (29, 10, 2), (40, 20, 2)])
def test_every_example_is_in_one_of_three_parts(count, share, held):
    rest, *parts = two_held_out(range(count), share)
    assert [len(part) for part in parts] == [held, held]
    assert sorted(rest + parts[0] + parts[1]) == list(range(count))
