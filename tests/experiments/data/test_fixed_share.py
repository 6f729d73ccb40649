from rnnorm.experiments.data.batches import subsample


def test_a_share_is_of_the_whole_and_in_its_order():
    share = subsample(range(1000), 100)
    assert share == sorted(set(share))
    assert len(share) == 100
    assert 30 < sum(i < 500 for i in share) < 70
    assert subsample(range(1000), 100) == share


def test_all_are_kept_where_there_are_no_more():
    assert subsample("abc", None) == subsample("abc", 3) == subsample("abc", 9) == [*"abc"]
