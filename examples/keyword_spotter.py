"""
A keyword spotter in C
======================

A net learns to tell ten words apart. It is exported to C, in float and in 8 bits, and the C
programs are compared with the net. :doc:`/export` says what such a C file holds.

The words on this page are made up, because the docs are built without a network. With
``--data-dir`` they are spoken digits of six people: 2700 recordings for training, and 300 for the
test.

.. code-block:: sh

   git clone https://github.com/Jakobovski/free-spoken-digit-dataset
   python examples/keyword_spotter.py --data-dir free-spoken-digit-dataset --epochs 8
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import rnnorm
from rnnorm.experiments.data.speech.filter_banks import FEATURES, filter_banks
from rnnorm.experiments.data.speech.recordings import read_recordings
from rnnorm.experiments.data.speech.spoken_digits import RATE, SPEAKERS, find_recordings

parser = argparse.ArgumentParser(description="Train a net on spoken digits, and write it in C.")
parser.add_argument("--data-dir", type=Path, help="folder of the spoken digits")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--units", type=int, default=48)
parser.add_argument("--save", type=Path, help="folder of the C files, else temporary")
# a notebook has no command line
given = parser.parse_args([] if "get_ipython" in globals() else None)
torch.manual_seed(0)

# %%
# The words
# ---------
#
# A made-up word has two gliding tones in noise; its pitch and speed vary. Each word becomes frames
# of 41 filter banks, one frame every 10 ms.


def make_up(count, seed):
    generator = np.random.default_rng(seed)
    glides = 250 * 2 ** np.random.default_rng(0).uniform(0, 3, (10, 2, 2))
    for word in np.arange(count) % 10:
        t = np.linspace(0, 1, generator.integers(1600, 3200))
        samples = 0.1 * generator.standard_normal(len(t))
        for first, last in glides[word] * generator.uniform(0.8, 1.25):
            samples += 0.05 * np.sin(np.cumsum(2 * np.pi / RATE * (first + (last - first) * t)))
        yield int(word), samples.astype(np.float32)


def read(folder, indices):
    names = [f"{digit}_{s}_{i}.wav" for digit in range(10) for s in SPEAKERS for i in indices]
    found = dict(read_recordings(find_recordings(folder), names, RATE))
    return [(int(name[0]), found[name]) for name in names]


def load(recordings):
    """Return frames (T, FEATURES) of each word, and which word it is."""
    words, frames = zip(*[(word, filter_banks(s, RATE)) for word, s in recordings], strict=True)
    return [torch.from_numpy(each) for each in frames], torch.tensor(words)


if given.data_dir is None:
    (x, y), (x_test, y_test) = load(make_up(600, seed=1)), load(make_up(200, seed=2))
else:
    # the published split
    x, y = load(read(given.data_dir, range(5, 50)))
    x_test, y_test = load(read(given.data_dir, range(5)))
mean, deviation = torch.cat(x).mean(0), torch.cat(x).std(0)
x, x_test = ([(frames - mean) / deviation for frames in part] for part in (x, x_test))

# %%
# Training
# --------


class Spotter(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.rnn = rnnorm.GRU(FEATURES, units, norm="layer")
        self.out = nn.Linear(units, 10)

    def forward(self, words):
        lengths = torch.tensor([len(frames) for frames in words])
        _, h_n = self.rnn(pad_sequence(words), lengths=lengths)
        return self.out(h_n[-1])


def accuracy(predicted):
    return (predicted == y_test).float().mean().item()


model = Spotter(given.units)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(given.epochs):
    for rows in torch.randperm(len(x)).split(32):
        loss = cross_entropy(model([x[k] for k in rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
frozen = rnnorm.freeze(model)
print(f"torch: accuracy {accuracy(frozen(x_test).argmax(1)):.3f}")

# %%
# In C
# ----
#
# ``rnnorm.export.c`` writes the layer and the linear layer after it. The program below runs a
# stream for each word: it reads the number of frames and the frames, and prints the scores after
# the last frame.

MAIN = """
#include "spotter.h"
#include <stdio.h>

int main(void)
{
    float frame[SPOTTER_INPUTS], scores[SPOTTER_OUTPUTS], frames;
    while (fread(&frames, sizeof frames, 1, stdin) == 1) {
        spotter_state state;
        spotter_reset(&state);
        for (; frames > 0; --frames) {
            if (fread(frame, sizeof frame, 1, stdin) != 1)
                return 1;
            spotter_frame(&state, frame, scores);
        }
        for (int k = 0; k < SPOTTER_OUTPUTS; ++k)
            printf("%.9g ", scores[k]);
    }
    return 0;
}
"""


def run_in_c(folder):
    """Compile the stream with the program, and return the scores of the test set."""
    (folder / "main.c").write_text(MAIN)
    sources = [folder / "spotter.c", folder / "main.c"]
    program = (folder / "spotter").resolve()
    subprocess.run(["cc", "-std=c99", "-O2", *sources, "-o", program, "-lm"], check=True)
    words = [np.append(np.float32(len(frames)), frames.numpy()).tobytes() for frames in x_test]
    done = subprocess.run([program], input=b"".join(words), capture_output=True, check=True)
    return torch.tensor([float(score) for score in done.stdout.split()]).view(-1, 10)


temporary = tempfile.TemporaryDirectory()
scores = {}
for kind, quantize in (("float", None), ("int8", "int8")):
    folder = (given.save or Path(temporary.name)) / kind
    folder.mkdir(parents=True, exist_ok=True)
    # the difference is measured on a word of the test set
    stream = rnnorm.export.c(
        frozen.rnn, folder / "spotter.c", quantize, linear=frozen.out, frames=x_test[0]
    )
    print(f"{kind}: {stream.flash} bytes of flash, {stream.ram} of RAM, error {stream.error:.1e}")
    if shutil.which("cc"):
        scores[kind] = run_in_c(folder)
        print(f"{kind}: accuracy {accuracy(scores[kind].argmax(1)):.3f}")

# %%
# The picture shows how far 8 bits change the result: each point is the score of one digit for one
# word.

with torch.no_grad():
    wanted = frozen(x_test)
for kind in reversed(scores):
    apart = scores[kind] - wanted
    plt.plot(wanted.flatten(), apart.flatten(), ".", markersize=3, label=kind)
plt.xlabel("score in PyTorch")
plt.ylabel("score in C − score in PyTorch")
plt.legend()
plt.show()
