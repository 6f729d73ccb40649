"""
A model of characters
=====================

A net learns to predict the next character of a text, and then writes. The text on this page is the
help on Python's own language, which is part of every Python. Name a file to train on another text:

.. code-block:: sh

   python examples/characters.py novel.txt --minutes 2
"""

import argparse
import math
import pydoc_data.topics
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import rnnorm

parser = argparse.ArgumentParser(description="Train a model of characters, and let it write.")
parser.add_argument("file", nargs="?")
parser.add_argument("--minutes", type=float, default=0.1)
parser.add_argument("--begin", default="The ")
# a notebook has no command line
given = parser.parse_args([] if "get_ipython" in globals() else None)
torch.manual_seed(0)
LENGTH, ROWS = 50, 32

# %%
# The text
# --------
#
# The last tenth of the text is for validation.

if given.file is None:
    content = "\n".join(pydoc_data.topics.topics.values())
else:
    content = Path(given.file).read_text(encoding="utf-8")
alphabet = sorted(set(content) | set(given.begin))
text = torch.tensor([alphabet.index(c) for c in content])
train, val = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
print(f"{len(content)} characters, {len(alphabet)} different ones")


def windows(text, count):
    for _ in range(count):
        starts = torch.randint(len(text) - LENGTH - 1, (ROWS,)).tolist()
        yield torch.stack([text[s : s + LENGTH + 1] for s in starts], 1)


# %%
# Training
# --------
#
# All steps share one row of statistics, because a window of a text has no first frame to align to.


class Writer(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.symbols = symbols
        norm = rnnorm.BatchNorm(population="shared")
        self.rnn = rnnorm.LSTM(symbols, 128, norm=norm)
        self.out = nn.Linear(128, symbols)

    def forward(self, x, state=None):
        output, state = self.rnn(one_hot(x, self.symbols).float(), state)
        return self.out(output), state


def bits(model, window):
    scores, _ = model(window[:-1])
    return cross_entropy(scores.flatten(0, 1), window[1:].flatten()) / math.log(2)


model = Writer(len(alphabet))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses, end = [], time.monotonic() + 60 * given.minutes
while time.monotonic() < end:
    for window in windows(train, 20):
        loss = bits(model, window)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
rnnorm.update_bn((window[:-1] for window in windows(train, 50)), model)
model.eval()
with torch.no_grad():
    validation = torch.stack([bits(model, window) for window in windows(val, 20)]).mean()
print(f"validation: {validation:.3f} bits per character")

# %%
# Writing
# -------
#
# The net reads what it has written, one character at a time.

x, state = torch.tensor([[alphabet.index(c)] for c in given.begin]), None
written = given.begin
with torch.no_grad():
    for _ in range(200):
        scores, state = model(x, state)
        x = torch.multinomial(scores[-1].softmax(1), 1)
        written += alphabet[int(x)]
print(written)

# %%

plt.plot(losses)
plt.axhline(validation, color="grey", linestyle=":", label="validation, in the end")
plt.xlabel("minibatch")
plt.ylabel("bits per character, training")
plt.legend()
plt.show()
