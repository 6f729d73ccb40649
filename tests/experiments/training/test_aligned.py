from rnnorm.experiments.console import text_table


def test_columns_are_as_wide_as_their_widest_cell():
    assert text_table([("", "score"), ("LSTM", "1"), ("BN-LSTM", "")]) == [
        "         score",
        "LSTM     1",
        "BN-LSTM",
    ]
    assert text_table([("a", "b")], " ") == ["a b"]
