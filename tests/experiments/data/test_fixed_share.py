from rnnorm.experiments.data.batches import fixed_share


def test_a_share_is_of_the_whole_and_in_its_order():
    share = fixed_share(range(1000), 100)
    assert share == sorted(set(share))
    assert len(share) == 100
    assert 30 < sum(i < 500 for i in share) < 70
    assert fixed_share(range(1000), 100) == share


def test_all_are_kept_where_there_are_no_more():
    assert fixed_share("abc", None) == fixed_share("abc", 3) == fixed_share("abc", 9) == [*"abc"]
