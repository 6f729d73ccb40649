import torch

from rnnorm.experiments.models.attention import LuongAttention


def drawn():
    torch.manual_seed(0)
    attention = LuongAttention(6, 4).double()
    y, h = torch.randn(5, 3, 6).double(), torch.randn(7, 3, 4).double()
    return attention, y, torch.tensor([5, 1, 3]), h


def test_the_equations():
    attention, y, lengths, h = drawn()
    w_a, w_c = attention.key.weight, attention.combine.weight
    found = attention(h, attention.memory(y, lengths))
    for b, length in enumerate(lengths):
        for t in range(len(h)):
            a = torch.stack([h[t, b] @ w_a @ y[s, b] for s in range(length)]).softmax(0)
            c = sum(a[s] * y[s, b] for s in range(length))
            torch.testing.assert_close(found[t, b], torch.tanh(w_c @ torch.cat([c, h[t, b]])))


def test_padding_is_not_looked_at():
    attention, y, lengths, h = drawn()
    expected = attention(h, attention.memory(y, lengths))
    inside = torch.arange(5).unsqueeze(1) < lengths
    longer = torch.cat([y.masked_fill(~inside.unsqueeze(2), 9.0), torch.full((5, 3, 6), 9.0)])
    found = attention(h, attention.memory(longer.double(), lengths))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
