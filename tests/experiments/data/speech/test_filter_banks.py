import numpy as np
import pytest

from rnnorm.experiments.data.speech.filter_banks import (
    add_deltas,
    filter_banks,
    normalise,
    stack,
)

RATE = 8000


def definition(samples):
    """Kaldi's log mel filter banks and energy, written out: 25 ms every 10 ms at 8 kHz."""
    mel = lambda hertz: 1127 * np.log(1 + hertz / 700)  # noqa: E731
    bins = mel(np.arange(129) * RATE / 256)
    edges = np.linspace(mel(20), mel(RATE / 2), 42)
    banks = [
        np.clip(np.minimum((bins - a) / (b - a), (c - bins) / (c - b)), 0, None)
        for a, b, c in zip(edges, edges[1:], edges[2:], strict=False)
    ]
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 199)) ** 0.85
    rows = []
    for start in range(0, len(samples) - 199, 80):
        frame = 32768 * samples[start : start + 200].astype(np.float64)
        frame -= frame.mean()
        energy = np.log((frame**2).sum())
        frame -= 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * window, 256)) ** 2
        rows.append([energy, *np.log(np.array(banks) @ power)])
    return np.array(rows)


@pytest.fixture
def samples():
    random = np.random.RandomState(0)
    return (0.1 * random.randn(1500) + 0.3 * np.sin(np.arange(1500) / 9)).astype(np.float32)


def test_filter_banks_are_those_of_the_definition(samples):
    features = filter_banks(samples, RATE)
    assert features.dtype == np.float32
    assert features.shape == (1 + (1500 - 200) // 80, 41)
    np.testing.assert_allclose(features, definition(samples), rtol=0, atol=2e-3)


def test_the_same_samples_give_the_same_features(samples):
    np.testing.assert_array_equal(filter_banks(samples, RATE), filter_banks(samples, RATE))
    assert np.isfinite(filter_banks(np.zeros(400, np.float32), RATE)).all()


@pytest.mark.parametrize(("count", "frames"), [(0, 0), (199, 0), (200, 1), (279, 1), (280, 2)])
def test_only_whole_frames_count(samples, count, frames):
    assert filter_banks(samples[:count], RATE).shape == (frames, 41)


@pytest.mark.parametrize("frames", [1, 3, 12])
def test_deltas_are_those_of_the_definition(frames):
    x = np.random.RandomState(1).randn(frames, 2).astype(np.float32)
    window = [-0.2, -0.1, 0, 0.1, 0.2]
    at = lambda t: x[min(max(t, 0), frames - 1)]  # noqa: E731
    got = add_deltas(x)
    assert got.dtype == np.float32
    for t in range(frames):
        slope = sum(w * at(t + j - 2) for j, w in enumerate(window))
        # of frames beyond the ends too, each of which is the first or the last one
        second = sum(
            v * w * at(t + i + j - 4) for i, v in enumerate(window) for j, w in enumerate(window)
        )
        np.testing.assert_allclose(got[t], [*x[t], *slope, *second], atol=1e-6)


def test_deltas_of_a_line_are_its_slope():
    x = np.arange(20, dtype=np.float32)[:, None]
    inside = add_deltas(x)[4:-4]
    np.testing.assert_allclose(inside[:, 1], 1, atol=1e-5)
    np.testing.assert_allclose(inside[:, 2], 0, atol=1e-5)


def test_normalised_features_have_mean_0_and_variance_1():
    x = np.random.RandomState(2).randn(50, 3).astype(np.float32) * [1, 100, 1e-3] + [0, 1e3, 5]
    x = normalise(x.astype(np.float32))
    assert x.dtype == np.float32
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(x.var(0), 1, rtol=1e-4)


def test_a_constant_feature_becomes_0():
    x = np.full((7, 2), 3.7, np.float32)
    np.testing.assert_array_equal(normalise(x), np.zeros((7, 2)))
    np.testing.assert_array_equal(normalise(x[:1]), np.zeros((1, 2)))


def test_frames_are_stacked_in_their_order_and_the_last_is_repeated():
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(stack(x, 3), [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 8, 9]])
    np.testing.assert_array_equal(stack(x, 5), x.reshape(1, 10))
    np.testing.assert_array_equal(stack(x, 1), x)
