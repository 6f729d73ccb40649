"""Speech features as in Kaldi: log mel filter banks, deltas and normalisation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FRAME_MILLISECONDS = 25
#: values of a frame: the log energy and 40 filter banks
FEATURES = 41

# slope of a line fitted to five frames: sum of j x_{t+j} over sum of j^2, j = -2 .. 2
_SLOPE = np.arange(-2, 3) / 10


def filter_banks(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """Compute log energy and 40 log mel filter banks of each whole 25 ms frame, every 10 ms.

    There is no dither, so that the same samples give the same features.

    Args:
        samples: samples of one channel ``(N,)``, in [-1, 1].
        rate: samples of a second.

    Returns:
        ``(T, 41)``, the log energy first; no rows if there is no whole frame.
    """
    import kaldi_native_fbank

    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.frame_length_ms = FRAME_MILLISECONDS
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = FEATURES - 1
    options.use_energy = True
    fbank = kaldi_native_fbank.OnlineFbank(options)
    # kaldi expects the range of 16-bit integers
    fbank.accept_waveform(rate, (samples * 32768).tolist())
    fbank.input_finished()
    frames = [fbank.get_frame(i) for i in range(fbank.num_frames_ready)]
    return np.array(frames, dtype=np.float32).reshape(-1, FEATURES)


def filter_banks_of(
    recording: object, samples: NDArray[np.float32], rate: int
) -> NDArray[np.float32]:
    """Compute :func:`filter_banks` of a recording, which must have a whole frame.

    Args:
        recording: the file, for the error.
        samples: samples of one channel ``(N,)``, in [-1, 1].
        rate: samples of a second.

    Raises:
        ValueError: if the recording is shorter than a frame.
    """
    frames = filter_banks(samples, rate)
    if not len(frames):
        raise ValueError(
            f"{recording} has {len(samples)} samples, less than a frame of {FRAME_MILLISECONDS} ms"
        )
    return frames


def add_deltas(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Append the slopes of features and the slopes of the slopes, as Kaldi's ``add-deltas`` does.

    The first and the last frame are repeated beyond the ends.

    Args:
        features: ``(T, F)``.

    Returns:
        ``(T, 3F)``.
    """
    parts = [features]
    for window in (_SLOPE, np.convolve(_SLOPE, _SLOPE)):
        reach = len(window) // 2
        padded = np.pad(features, ((reach, reach), (0, 0)), mode="edge")
        shifted = (padded[i : i + len(features)] * w for i, w in enumerate(window.astype("f4")))
        parts.append(sum(shifted, np.zeros_like(features)))
    return np.concatenate(parts, axis=1)


def normalise(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale the features of an utterance to mean 0 and variance 1; a constant one becomes 0.

    Args:
        features: ``(T, F)`` of one utterance.
    """
    centred = features - features.mean(axis=0, dtype=np.float64)
    spread = np.sqrt(np.square(centred).mean(axis=0))
    scale = np.where(spread > 1e-5, spread, np.inf)
    return np.asarray(centred / scale, dtype=np.float32)


def stack(features: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Concatenate each ``count`` frames into one, which makes the sequence shorter.

    The last frame is repeated beyond the end.

    Args:
        features: ``(T, F)``.
        count: frames that become one.

    Returns:
        ``(ceil(T / count), count * F)``.
    """
    missing = -len(features) % count
    padded = np.pad(features, ((0, missing), (0, 0)), mode="edge")
    return padded.reshape(-1, count * features.shape[1])
