"""The attention of Luong et al. 2015, to which a state is given after its step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rnnorm.experiments.data.inside import inside


class Memory(NamedTuple):
    """What there is to look at.

    Attributes:
        y: outputs of the encoder ``(B, S, ·)``, finite in the padding.
        keys: W_a y ``(B, S, H)``.
        inside: where there is no padding ``(B, S)``.
    """

    y: Tensor
    keys: Tensor
    inside: Tensor

    def of(self, rows: Tensor) -> Memory:
        """That of some rows, by index or mask."""
        return Memory(*(part[rows] for part in self))


class LuongAttention(nn.Module):
    r"""Global attention with the general score (Luong, Pham & Manning 2015, eq. 5, 7, 8).

    .. math::
        a_t(s) &= \mathrm{softmax}_s(h_t^\top W_a y_s) \\
        c_t &= \sum_s a_t(s) \, y_s \\
        \tilde h_t &= \tanh(W_c [c_t; h_t])

    Nothing of it is an input of the recurrent layer at the next step (no input feeding), so that
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
        """What :meth:`forward` looks at.

        Args:
            y: outputs of the encoder ``(S, B, memory_size)``.
            lengths: how many each row has ``(B,)``.
        """
        there = inside(lengths.to(y.device), len(y)).T
        y = y.transpose(0, 1)
        return Memory(y, self.key(y), there)

    def forward(self, h: Tensor, memory: Memory) -> Tensor:
        """States with what they have looked at.

        Args:
            h: states of the decoder ``(T, B, hidden_size)``.
            memory: of the same rows.

        Returns:
            h~ ``(T, B, hidden_size)``.
        """
        h = h.transpose(0, 1)
        scores = h @ memory.keys.transpose(1, 2)
        attention = scores.masked_fill(~memory.inside.unsqueeze(1), -torch.inf).softmax(2)
        context = attention @ memory.y
        return torch.tanh(self.combine(torch.cat([context, h], 2))).transpose(0, 1)
