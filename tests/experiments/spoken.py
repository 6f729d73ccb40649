"""A small set of spoken digits: noise, in the published layout, and states for its frames."""

import numpy as np
import soundfile
from kaldi_files import write_states

RATE = 8000
SPEAKERS = ("nicolas", "theo")
STATES = 6


def write_spoken(folder, count=15):
    """``recordings/`` and ``kaldi/digits/tri1/pdf.ark``; returns the states by utterance."""
    (folder / "recordings").mkdir(parents=True)
    random, states = np.random.RandomState(0), {}
    for speaker in SPEAKERS:
        for i in range(count):
            digit, frames = i % 3, 3 + (i * 7) % 11
            path = folder / "recordings" / f"{digit}_{speaker}_{i // 3}.wav"
            # each digit in its own pitch, so that there is something to learn
            time = np.arange(200 + 80 * (frames - 1)) / RATE
            tone = np.sin(2 * np.pi * (400 + 900 * digit) * time)
            noise = random.randn(len(time))
            soundfile.write(path, 0.3 * tone + 0.01 * noise, RATE, subtype="PCM_16")
            halves = np.arange(frames) >= frames // 2
            states[f"{speaker}_{digit}_{i // 3}"] = np.int32(2 * digit + halves)
    write_states(folder / "kaldi/digits/tri1", states)
    return states
