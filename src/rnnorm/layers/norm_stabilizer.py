"""A cost on changes of the hidden state's norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from rnnorm.layers.call import jagged
from rnnorm.layers.call.sorted_batch import check_lengths, refuse_lengths
from rnnorm.norm.spec import check_number


def norm_stabilizer(
    output: Tensor | PackedSequence,
    beta: float,
    lengths: Tensor | Sequence[int] | None = None,
    *,
    batch_first: bool = False,
) -> Tensor:
    r"""Return the norm stabilizer of Krueger & Memisevic 2015, a cost to add to the loss.

    .. math::
        \frac{\beta}{T} \sum_{t=2}^{T} (\|h_t\|_2 - \|h_{t-1}\|_2)^2

    summed over the sequences of a minibatch; T is then the number of all their real frames.

    Args:
        output: of a layer in one direction: ``(T, B, H)``, ``(B, T, H)`` with ``batch_first``,
            ``(T, H)`` unbatched, a PackedSequence, or jagged ``(B, j, H)``.
        beta: weight of the cost; 50 to 500 in the paper.
        lengths: ``(B,)`` integers, for a right-padded dense batch; padding is never read.
        batch_first: layout of a dense batch.

    Returns:
        a scalar, in float32 or wider.

    Raises:
        ValueError: if ``output`` is neither 2-D nor 3-D, ``lengths`` are given with packed, nested
            or unbatched output, or ``beta`` is negative.
        TypeError: if ``output`` is neither a tensor nor a PackedSequence, ``lengths`` are not
            integers, or ``beta`` is not a number.
        RuntimeError: if ``lengths`` do not fit the output.

    Example:
        >>> rnn = rnnorm.RNN(8, 16)
        >>> output, _ = rnn(torch.randn(5, 3, 8))
        >>> cost = rnnorm.norm_stabilizer(output, beta=50)
    """
    check_number("beta", beta, 0.0)
    if isinstance(output, Tensor) and output.is_nested:
        output, lengths = jagged.pack(output, lengths, None)[0], None
    if not isinstance(output, Tensor | PackedSequence):
        raise TypeError(
            "output must be a Tensor or a PackedSequence, the first result of a layer, got a "
            f"{type(output).__name__}"
        )
    if lengths is not None:
        refuse_lengths("output", output)
    if isinstance(output, PackedSequence):
        h, lengths = pad_packed_sequence(output)
    elif output.dim() == 2:
        h = output.unsqueeze(1)
    elif output.dim() == 3:
        h = output.transpose(0, 1) if batch_first else output
    else:
        raise ValueError(f"output must be 2-D or 3-D, got {output.dim()}-D")
    steps, rows = h.size(0), h.size(1)
    real = torch.ones(steps, rows, dtype=torch.bool, device="cpu")
    if lengths is not None:
        real = torch.arange(steps, device="cpu").unsqueeze(1) < check_lengths(lengths, steps, rows)
    frames, real = int(real.sum()), real.to(h.device)
    # padding becomes 1: at 0 the norm has no second derivative
    h = h.masked_fill(~real.unsqueeze(2), 1.0)
    wide = torch.promote_types(h.dtype, torch.float32)
    changes = torch.linalg.vector_norm(h, dim=2, dtype=wide).diff(dim=0).square()
    cost: Tensor = beta * (changes * real[1:]).sum() / max(1, frames)
    return cost
