"""All recordings of one speaker of spoken digits: a tone for each digit."""

import numpy as np
import soundfile

RATE, SPEAKER = 8000, "theo"


def tone(digit, seconds=0.08, rate=RATE):
    return 0.3 * np.sin(2 * np.pi * (250 + 330 * digit) * np.arange(int(seconds * rate)) / rate)


def write_recordings(folder):
    (folder / "recordings").mkdir(parents=True)
    for digit in range(10):
        for index in range(50):
            path = folder / "recordings" / f"{digit}_{SPEAKER}_{index}.wav"
            soundfile.write(path, tone(digit, 0.06 + 0.001 * index), RATE, subtype="PCM_16")
    return folder
