"""Train a net on spoken digits, write it in C, in float and in 8 bits, and compare the accuracy.

git clone https://github.com/Jakobovski/free-spoken-digit-dataset
python examples/keyword_spotter.py --data-dir free-spoken-digit-dataset
"""

import argparse
import shutil
import subprocess
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import rnnorm
from rnnorm.experiments.data.speech.filter_banks import FEATURES, filter_banks
from rnnorm.experiments.data.speech.recordings import read_recordings
from rnnorm.experiments.data.speech.spoken_digits import RATE, SPEAKERS, find_recordings

# reads the length and the frames of each word, and prints the digit
MAIN = """
#include "{name}.h"
#include <stdio.h>

int main(void)
{{
    float frame[{NAME}_INPUTS], scores[{NAME}_OUTPUTS] = {{0}}, length;
    while (fread(&length, sizeof length, 1, stdin) == 1) {{
        {name}_state state;
        {name}_reset(&state);
        for (int t = 0; t < (int)length; ++t) {{
            if (fread(frame, sizeof frame, 1, stdin) != 1)
                return 1;
            {name}_frame(&state, frame, scores);
        }}
        int best = 0;
        for (int k = 1; k < {NAME}_OUTPUTS; ++k)
            best = scores[k] > scores[best] ? k : best;
        printf("%d\\n", best);
    }}
    return 0;
}}
"""


class Spotter(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.rnn = rnnorm.GRU(FEATURES, units, norm="layer")
        self.out = nn.Linear(units, 10)

    def forward(self, words):
        lengths = torch.tensor([len(word) for word in words])
        _, h_n = self.rnn(pad_sequence(words), lengths=lengths)
        return self.out(h_n[-1])


def load(folder, indices):
    """Return the words, ``(T, FEATURES)`` each with a frame every 10 ms, and their digits."""
    names = [f"{digit}_{s}_{i}.wav" for digit in range(10) for s in SPEAKERS for i in indices]
    found = dict(read_recordings(find_recordings(folder), names, RATE))
    words = [torch.from_numpy(filter_banks(found[name], RATE)) for name in names]
    return words, torch.tensor([int(name[0]) for name in names])


def accuracy(said, digits):
    return (said == digits).float().mean().item()


def run_in_c(path, words):
    """Compile a stream with the main above, and return the digits that the program prints."""
    main = path.with_name(f"{path.stem}_main.c")
    main.write_text(MAIN.format(name=path.stem, NAME=path.stem.upper()))
    program = path.with_suffix("")
    subprocess.run(["cc", "-std=c99", "-O2", path, main, "-o", program, "-lm"], check=True)
    given = b"".join(
        torch.tensor([float(len(word))]).numpy().tobytes() + word.numpy().tobytes()
        for word in words
    )
    printed = subprocess.run([program.resolve()], input=given, capture_output=True, check=True)
    return torch.tensor([int(line) for line in printed.stdout.split()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--units", type=int, default=48)
    parser.add_argument("--save", type=Path, default=Path())
    given = parser.parse_args()
    torch.manual_seed(0)
    # the published split
    words, digits = load(given.data_dir, range(5, 50))
    test_words, test_digits = load(given.data_dir, range(5))
    mean = torch.cat(words).mean(0)
    deviation = torch.cat(words).std(0)
    words, test_words = (
        [(word - mean) / deviation for word in part] for part in (words, test_words)
    )
    model = Spotter(given.units)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(given.epochs):
        for rows in torch.randperm(len(words)).split(32):
            loss = cross_entropy(model([words[k] for k in rows]), digits[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    frozen = rnnorm.freeze(model)
    print(f"torch: accuracy {accuracy(frozen(test_words).argmax(1), test_digits):.3f}")

    for name, quantize in (("spotter", None), ("spotter_int8", "int8")):
        path = given.save / f"{name}.c"
        # the difference is measured on a word of the test set
        stream = rnnorm.export.c(
            frozen.rnn, path, quantize, linear=frozen.out, frames=test_words[0]
        )
        print(
            f"{path}: {stream.flash} bytes of flash, {stream.ram} of RAM, error {stream.error:.1e}"
        )
        if shutil.which("cc"):
            said = run_in_c(path, test_words)
            print(f"{path}: accuracy {accuracy(said, test_digits):.3f}")


if __name__ == "__main__":
    main()
