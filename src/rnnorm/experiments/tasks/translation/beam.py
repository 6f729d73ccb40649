"""Beam search for translations."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnorm.experiments.data.text.vocabulary import END
from rnnorm.experiments.models.recurrent_model import rows_of
from rnnorm.experiments.tasks.translation.decoder import Decoder, DecoderState


def beam_search(decoder: Decoder, at: DecoderState, size: int, limit: int) -> Tensor:
    """Find each row's translation with the highest score.

    At each step the ``size`` most probable of all continuations of a row are kept. A translation
    that has ended stays in the beam unchanged and costs no further step. In the end translations
    are compared by log-probability divided by number of symbols.

    Args:
        decoder: the decoder, in evaluation mode.
        at: memory and states of B rows before the first symbol.
        size: size K of the beam.
        limit: most symbols of a translation.

    Returns:
        Symbols ``(T, B)``, with end symbols behind shorter translations.
    """
    memory, state = at
    rows, device = len(memory.y), memory.y.device
    k = min(size, decoder.classifier.out_features)
    wide = torch.promote_types(memory.y.dtype, torch.float32)
    # each row starts with one hypothesis; all others are impossible
    total = torch.full((rows, size), -torch.inf, device=device, dtype=wide)
    total[:, 0] = 0
    history = torch.full((0, rows, size), END, device=device)
    lengths = torch.zeros(rows, size, device=device, dtype=torch.int64)
    # mask of the hypotheses that have not ended
    going_on = total > -torch.inf
    symbols = torch.full((rows, size), END, device=device)
    for t in range(limit):
        row, hypothesis = going_on.nonzero().T
        x = decoder.embed(symbols[row, hypothesis]).unsqueeze(0)
        features, (_, state) = decoder.steps(x, DecoderState(memory.of(row), state), t)
        likely = decoder.scores(features[0]).log_softmax(1, dtype=wide).topk(k, 1)
        scores = torch.full((rows, size, k), -torch.inf, device=device, dtype=wide)
        nexts = torch.full((rows, size, k), END, device=device)
        # a hypothesis that has ended has itself as its only continuation
        scores[:, :, 0] = total
        scores[row, hypothesis] = total[row, hypothesis].unsqueeze(1) + likely.values
        nexts[row, hypothesis] = likely.indices
        total, best = scores.flatten(1).topk(size, 1)
        parent = best // k
        symbols = nexts.flatten(1).gather(1, best)
        went_on = going_on.gather(1, parent)
        lengths = lengths.gather(1, parent) + went_on
        history = history.gather(2, parent.expand(t, rows, size))
        history = torch.cat([history, symbols.unsqueeze(0)])
        # row of the state that belongs to each hypothesis
        index = torch.zeros(rows, size, device=device, dtype=torch.int64)
        index[row, hypothesis] = torch.arange(len(row), device=device)
        going_on = went_on & (symbols != END) & (total > -torch.inf)
        if not going_on.any():
            break
        kept = index.gather(1, parent)[going_on]
        state = rows_of(state, kept)
    first = (total / lengths.clamp(min=1)).argmax(1)
    return history[:, torch.arange(rows, device=device), first]
