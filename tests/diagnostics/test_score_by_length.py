import copy

import torch

import rnnorm
from rnnorm.diagnostics import batch_statistics, plot_score_by_length, score_by_length

X = torch.randn(8, 6, 3, generator=torch.Generator().manual_seed(0))


def last_sum(model, length):
    return model(X[:length])[0][-1].sum()


def trained(**arguments):
    lstm = rnnorm.LSTM(3, 4, norm="batch", **({"initial_noise": 0.0} | arguments))
    lstm(torch.randn(5, 6, 3))
    return lstm


def test_scores_are_those_of_training_and_of_evaluation():
    lstm = trained()
    before = copy.deepcopy(lstm.state_dict())
    scores = score_by_length(lstm, last_sum, [2, 8])
    assert lstm.training
    for name, value in lstm.state_dict().items():
        assert torch.equal(value, before[name]), name
    batch = torch.stack([last_sum(lstm, length) for length in (2, 8)])
    torch.testing.assert_close(scores["batch"], batch)
    lstm.load_state_dict(before)
    lstm.eval()
    population = torch.stack([last_sum(lstm, length) for length in (2, 8)])
    torch.testing.assert_close(scores["population"], population)
    assert not torch.allclose(scores["batch"], scores["population"])


def test_batch_statistics_come_without_dropout_and_noise():
    lstm = trained(num_layers=2, dropout=0.9, initial_noise=1.0).eval()
    with batch_statistics(lstm):
        assert torch.equal(last_sum(lstm, 8), last_sum(lstm, 8))


def test_a_model_without_statistics_has_one_score():
    assert list(score_by_length(rnnorm.LSTM(3, 4), last_sum, [2])) == ["population"]


def test_picture_names_lengths_and_statistics(axes):
    scores = {"population": torch.tensor([1.0, 2.0]), "batch": torch.tensor([1.0, 3.0])}
    plot_score_by_length(axes, [50, 100], scores, "bits per character")
    assert [line.get_label() for line in axes.lines] == ["population", "batch"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["50", "100"]
    assert axes.get_ylabel() == "bits per character"


def test_no_scores_are_an_empty_panel(axes):
    plot_score_by_length(axes, [], {})
    assert not axes.lines
    assert axes.get_legend() is None
