from rnnorm.experiments.console import aligned


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned([("", "score"), ("LSTM", "1"), ("BN-LSTM", "")]) == [
        "         score",
        "LSTM     1",
        "BN-LSTM",
    ]
    assert aligned([("a", "b")], " ") == ["a b"]
