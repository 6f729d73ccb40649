"""The attention modules of Hermann et al. 2015 and of Luong et al. 2015."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rnnorm.experiments.data.batches import frame_mask


class Attention(nn.Module):
    r"""The attention of a query to a document (Hermann et al. 2015).

    .. math::
        m(t) &= \tanh(W_{ym} y(t) + W_{um} u + b_m) \\
        s(t) &= \mathrm{softmax}_t(w_{ms} \cdot m(t)) \\
        r &= \sum_t s(t) \, y(t) \\
        g &= \tanh(W_{rg} r + W_{ug} u + b_g)

    With ``norm`` each of the four products is normalised (Cooijmans et al. 2016, BN-everywhere):
    W_ym y over the unpadded frames of the minibatch, the others over its rows. γ starts at 1, not
    at 0.1 as in the recurrence: a tanh of small terms is nearly linear, and W_um u, the same at all
    t, would cancel in the softmax. The biases b do the job of β; the published equations have none.

    Args:
        input_size: width of y and u.
        hidden_size: width of m and g.
        norm: whether to batch-normalise the four products.
    """

    def __init__(self, input_size: int, hidden_size: int, norm: bool = False) -> None:
        super().__init__()
        self.document_to_match = _product(input_size, hidden_size, norm)
        self.query_to_match = _product(input_size, hidden_size, norm)
        self.match_bias = nn.Parameter(torch.zeros(hidden_size))
        self.match_to_score = nn.Linear(hidden_size, 1, bias=False)
        self.read_to_answer = _product(input_size, hidden_size, norm)
        self.query_to_answer = _product(input_size, hidden_size, norm)
        self.answer_bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, y: Tensor, lengths: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the joint representation of document and query.

        Args:
            y: outputs of the document's encoder ``(T, B, input_size)``, finite in the padding.
            lengths: words of each document ``(B,)``.
            u: last states of the query's encoder ``(B, input_size)``.

        Returns:
            g ``(B, hidden_size)`` and s ``(T, B)``, 0 in the padding.
        """
        inside = frame_mask(lengths.to(y.device), len(y))
        rows = inside.nonzero()[:, 1]
        # padded frames are left out of the product, so that statistics do not see them
        term = self.query_to_match(u)[rows]
        m = torch.tanh(self.document_to_match(y[inside]) + term + self.match_bias)
        found = self.match_to_score(m).squeeze(1)
        scores = found.new_full(inside.shape, -torch.inf)
        scores[inside] = found
        s = scores.softmax(0)
        r = (s.unsqueeze(2) * y).sum(0)
        g = torch.tanh(self.read_to_answer(r) + self.query_to_answer(u) + self.answer_bias)
        return g, s


def _product(input_size: int, output_size: int, norm: bool) -> nn.Sequential:
    """Make the product W z, or γ BN(W z) with ``norm``."""
    matrix = nn.Linear(input_size, output_size, bias=False)
    nn.init.orthogonal_(matrix.weight)
    product = nn.Sequential(matrix)
    if norm:
        scale = nn.BatchNorm1d(output_size)
        # the bias that is added later does the job of β
        scale.register_parameter("bias", None)
        product.append(scale)
    return product


class Memory(NamedTuple):
    """The encoder's outputs that attention reads.

    Attributes:
        y: outputs of the encoder ``(B, S, ·)``, finite in the padding.
        keys: W_a y ``(B, S, H)``.
        inside: True where there is no padding ``(B, S)``.
    """

    y: Tensor
    keys: Tensor
    inside: Tensor

    def of(self, rows: Tensor) -> Memory:
        """Select some rows, by index or mask."""
        return Memory(*(part[rows] for part in self))


class LuongAttention(nn.Module):
    r"""Global attention with the general score (Luong, Pham & Manning 2015, eq. 5, 7, 8).

    .. math::
        a_t(s) &= \mathrm{softmax}_s(h_t^\top W_a y_s) \\
        c_t &= \sum_s a_t(s) \, y_s \\
        \tilde h_t &= \tanh(W_c [c_t; h_t])

    Attention is not an input of the recurrent layer at the next step (no input feeding), so that
    all steps whose inputs are known are one call of that layer.

    Args:
        memory_size: width of y.
        hidden_size: width of h.
    """

    def __init__(self, memory_size: int, hidden_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(memory_size, hidden_size, bias=False)
        self.combine = nn.Linear(memory_size + hidden_size, hidden_size, bias=False)

    def memory(self, y: Tensor, lengths: Tensor) -> Memory:
        """Prepare the encoder's outputs for :meth:`forward`.

        Args:
            y: outputs of the encoder ``(S, B, memory_size)``.
            lengths: outputs of each row ``(B,)``.
        """
        inside = frame_mask(lengths.to(y.device), len(y)).T
        y = y.transpose(0, 1)
        return Memory(y, self.key(y), inside)

    def forward(self, h: Tensor, memory: Memory) -> Tensor:
        """Combine states with the context that they attend to.

        Args:
            h: states of the decoder ``(T, B, hidden_size)``.
            memory: the encoder's outputs for the same rows.

        Returns:
            h~ ``(T, B, hidden_size)``.
        """
        h = h.transpose(0, 1)
        scores = h @ memory.keys.transpose(1, 2)
        attention = scores.masked_fill(~memory.inside.unsqueeze(1), -torch.inf).softmax(2)
        context = attention @ memory.y
        return torch.tanh(self.combine(torch.cat([context, h], 2))).transpose(0, 1)
