"""A small set of spoken digits: tones, in the published layout, and states for its frames."""

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
            time = np.arange(200 + 80 * (frames - 1))
            # a tone of its own for each state, two of which a digit has
            states[f"{speaker}_{digit}_{i // 3}"] = of_frames = np.int32(
                2 * digit + (np.arange(frames) >= frames // 2)
            )
            pitch = 300 + 600 * of_frames[np.minimum(time // 80, frames - 1)]
            tone = np.sin(2 * np.pi * pitch * time / RATE)
            noise = random.randn(len(time))
            soundfile.write(path, 0.3 * tone + 0.01 * noise, RATE, subtype="PCM_16")
    write_states(folder / "kaldi/digits/tri1", states)
    return states
