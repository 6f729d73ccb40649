"""Beam search: the most probable of several translations that are written side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.experiments.data.text.vocabulary import END
from rnnorm.experiments.models.recurrent_model import rows_of
from rnnorm.experiments.tasks.translation.decoder import Decoder, Sight


def beam_search(decoder: Decoder, at: Sight, size: int, limit: int) -> Tensor:
    """Write each row's translation with the highest score.

    At each step the ``size`` most probable of all continuations of a row are kept; one that has
    ended stays as it is, takes its place in the beam and costs no further step. In the end they are
    compared by log-probability over number of symbols.

    Args:
        decoder: in evaluation.
        at: what B rows go on from before the first symbol.
        size: of the beam, K.
        limit: symbols of a translation at most.

    Returns:
        symbols ``(T, B)``, the end symbol behind those that end before.
    """
    memory, state = at
    rows, device = len(memory.y), memory.y.device
    k = min(size, decoder.classifier.out_features)
    wide = torch.promote_types(memory.y.dtype, torch.float32)
    # one hypothesis of each row at first; all others are impossible
    total = torch.full((rows, size), -torch.inf, device=device, dtype=wide)
    total[:, 0] = 0
    history = torch.full((0, rows, size), END, device=device)
    lengths = torch.zeros(rows, size, device=device, dtype=torch.int64)
    # where each hypothesis that goes on has its state: rows and places
    going_on = total > -torch.inf
    symbols = torch.full((rows, size), END, device=device)
    for t in range(limit):
        row, place = going_on.nonzero().T
        x = decoder.embed(symbols[row, place]).unsqueeze(0)
        features, (_, state) = decoder.steps(x, Sight(memory.of(row), state), t)
        likely = decoder.scores(features[0]).log_softmax(1, dtype=wide).topk(k, 1)
        scores = torch.full((rows, size, k), -torch.inf, device=device, dtype=wide)
        nexts = torch.full((rows, size, k), END, device=device)
        # one that has ended is its own only continuation
        scores[:, :, 0] = total
        scores[row, place] = total[row, place].unsqueeze(1) + likely.values
        nexts[row, place] = likely.indices
        total, best = scores.flatten(1).topk(size, 1)
        parent = best // k
        symbols = nexts.flatten(1).gather(1, best)
        went_on = going_on.gather(1, parent)
        lengths = lengths.gather(1, parent) + went_on
        history = history.gather(2, parent.expand(t, rows, size))
        history = torch.cat([history, symbols.unsqueeze(0)])
        # which row of the state belongs to a hypothesis
        index = torch.zeros(rows, size, device=device, dtype=torch.int64)
        index[row, place] = torch.arange(len(row), device=device)
        going_on = went_on & (symbols != END) & (total > -torch.inf)
        if not going_on.any():
            break
        kept = index.gather(1, parent)[going_on]
        state = rows_of(state, kept)
    first = (total / lengths.clamp(min=1)).argmax(1)
    return history[:, torch.arange(rows, device=device), first]
