import pytest
import torch
from torch import nn

from rnnorm.experiments.models.attention import Attention


def normalised(z, gamma):
    """BN(z; gamma) over its first dimension."""
    return gamma * (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()


@pytest.mark.parametrize("norm", [False, True])
def test_it_is_the_definition_over_lists_of_unpadded_frames(norm):
    torch.manual_seed(0)
    attention = Attention(6, 4, norm).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    lengths, y = torch.tensor([3, 5, 1]), torch.randn(5, 3, 6).double()
    u = torch.randn(3, 6).double()
    g, s = attention(y, lengths, u)
    rows = [y[:n, i] for i, n in enumerate(lengths)]

    def product(part, z):
        w = part[0].weight
        return normalised(z @ w.T, part[1].weight) if norm else z @ w.T

    frames = product(attention.document_to_match, torch.cat(rows)).split(lengths.tolist())
    asked = product(attention.query_to_match, u)
    read = []
    for i, row in enumerate(rows):
        m = torch.tanh(frames[i] + asked[i] + attention.match_bias)
        weights = (m @ attention.match_to_score.weight[0]).softmax(0)
        torch.testing.assert_close(s[: len(row), i], weights)
        read.append(weights @ row)
    r = product(attention.read_to_answer, torch.stack(read))
    expected = torch.tanh(r + product(attention.query_to_answer, u) + attention.answer_bias)
    torch.testing.assert_close(g, expected)


@pytest.mark.parametrize("norm", [False, True])
def test_padding_gets_no_attention(norm):
    _, s = Attention(6, 4, norm)(torch.randn(5, 2, 6), torch.tensor([3, 5]), torch.randn(2, 6))
    assert (s[3:, 0] == 0).all()
    torch.testing.assert_close(s.sum(0), torch.ones(2))


def test_gamma_starts_at_one_and_there_is_no_beta():
    attention = Attention(6, 4, norm=True)
    layers = [m for m in attention.modules() if isinstance(m, nn.BatchNorm1d)]
    assert len(layers) == 4
    for layer in layers:
        assert layer.bias is None
        assert torch.equal(layer.weight, torch.ones(4))
    assert not any(isinstance(m, nn.BatchNorm1d) for m in Attention(6, 4).modules())


def test_statistics_are_those_of_the_unpadded_frames():
    attention = Attention(6, 4, norm=True)
    y, lengths = torch.randn(5, 3, 6), torch.tensor([3, 5, 1])
    attention(y, lengths, torch.randn(3, 6))
    frames = torch.cat([y[:n, i] for i, n in enumerate(lengths)])
    z = attention.document_to_match[0](frames).detach()
    layer = attention.document_to_match[1]
    torch.testing.assert_close(layer.running_mean, 0.1 * z.mean(0))
    torch.testing.assert_close(layer.running_var, 0.9 + 0.1 * z.var(0))


def test_equal_frames_get_equal_attention():
    _, s = Attention(6, 4)(torch.ones(4, 1, 6), torch.tensor([4]), torch.ones(1, 6))
    torch.testing.assert_close(s, torch.full((4, 1), 1 / 4))
