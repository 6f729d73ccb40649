"""Train a character model on any text, and let it write.

python examples/characters.py novel.txt --minutes 2
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import rnnorm

LENGTH, ROWS = 50, 32


class Writer(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.symbols = symbols
        # one row of statistics for all steps: text has no first frame to align to
        norm = rnnorm.BatchNorm(population="shared")
        self.rnn = rnnorm.LSTM(symbols, 128, norm=norm)
        self.out = nn.Linear(128, symbols)

    def forward(self, x, state=None):
        output, state = self.rnn(one_hot(x, self.symbols).float(), state)
        return self.out(output), state


def windows(text, count):
    for _ in range(count):
        starts = torch.randint(len(text) - LENGTH - 1, (ROWS,)).tolist()
        yield torch.stack([text[s : s + LENGTH + 1] for s in starts], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--begin", default="The ")
    given = parser.parse_args()
    torch.manual_seed(0)
    said = Path(given.file).read_text(encoding="utf-8")
    alphabet = sorted(set(said) | set(given.begin))
    text = torch.tensor([alphabet.index(c) for c in said])
    train, val = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    model = Writer(len(alphabet))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    end = time.monotonic() + 60 * given.minutes
    while time.monotonic() < end:
        for window in windows(train, 20):
            scores, _ = model(window[:-1])
            loss = cross_entropy(scores.flatten(0, 1), window[1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    rnnorm.update_bn((window[:-1] for window in windows(train, 50)), model)
    model.eval()
    with torch.no_grad():
        losses = []
        for window in windows(val, 20):
            scores, _ = model(window[:-1])
            losses.append(cross_entropy(scores.flatten(0, 1), window[1:].flatten()))
        bits = torch.stack(losses).mean() / math.log(2)
        print(f"validation: {bits:.3f} bits per character")
        x, state = torch.tensor([[alphabet.index(c)] for c in given.begin]), None
        written = given.begin
        for _ in range(200):
            scores, state = model(x, state)
            x = torch.multinomial(scores[-1].softmax(1), 1)
            written += alphabet[int(x)]
        print(written)


if __name__ == "__main__":
    main()
