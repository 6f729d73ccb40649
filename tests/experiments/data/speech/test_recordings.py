import lzma
import tarfile

import numpy as np
import pytest
import soundfile

from rnnorm.experiments.data.speech.recordings import read_recording, read_recordings

RATE = 8000
NAMES = ["0_ann_0.wav", "1_ann_0.wav", "0_bob_0.wav"]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "recordings"
    folder.mkdir()
    for i, name in enumerate(NAMES):
        write(folder / name, np.random.RandomState(i).randn(300 + i) / 10)
    (folder / "notes.txt").write_text("not a recording")
    return folder


def write(path, samples, rate=RATE, subtype="PCM_16"):
    soundfile.write(path, samples, rate, subtype=subtype)


def pack(folder, mode="w:xz"):
    path = folder.parent / "recordings.tar"
    with tarfile.open(path, mode) as archive:
        archive.add(folder, "recordings")
    return path


def read(path, names=NAMES):
    return dict(read_recordings(path, names, RATE))


@pytest.mark.parametrize("mode", [None, "w", "w:gz", "w:xz"])
def test_recordings_of_a_folder_or_an_archive(folder, mode):
    found = read(folder if mode is None else pack(folder, mode), NAMES[:2])
    assert sorted(found) == NAMES[:2]
    for name, samples in found.items():
        assert samples.dtype == np.float32
        want, _ = soundfile.read(folder / name)
        np.testing.assert_array_equal(samples, want.astype(np.float32))


def test_a_recording_that_is_missing_is_named(folder):
    (folder / NAMES[1]).unlink()
    for path in (folder, pack(folder)):
        with pytest.raises(FileNotFoundError, match="lacks 1 of 3 recordings, such as 1_ann"):
            read(path)


def test_a_recording_that_is_truncated_is_named(folder):
    path = folder / NAMES[1]
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"1_ann_0\.wav is (truncated|not a recording)"):
            read(folder, NAMES[1:2])


def test_a_wav_of_the_other_byte_order_is_read_and_refused_where_it_was_cut(folder):
    path, tone = folder / NAMES[0], np.sin(np.arange(300) / 9) / 2
    soundfile.write(path, tone, RATE, format="WAV", endian="BIG")
    np.testing.assert_allclose(read(folder, NAMES[:1])[NAMES[0]], tone, atol=1e-4)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"0_ann_0\.wav is truncated"):
        read(folder, NAMES[:1])


def test_a_recorder_that_was_killed_left_no_size_of_the_file(folder):
    path, whole = folder / NAMES[0], read(folder, NAMES[:1])
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(4) + data[8:])
    np.testing.assert_array_equal(read(folder, NAMES[:1])[NAMES[0]], whole[NAMES[0]])
    path.write_bytes(data[:4] + bytes(4) + data[8:-2])
    with pytest.raises(
        ValueError, match=rf"is truncated: .* byte {len(data) - 2}, not {len(data)}"
    ):
        read(folder, NAMES[:1])


@pytest.mark.parametrize("header", [1024, 2048])
def test_a_nist_file_says_how_long_its_header_is(tmp_path, header):
    path, tone = tmp_path / "a.sph", np.float32(np.arange(900) / 1024)
    soundfile.write(path, tone, RATE, format="NIST", subtype="PCM_16")
    data = path.read_bytes()
    size = b"%8d" % header
    path.write_bytes(data[:8] + size[1:] + data[15:1024].ljust(header - 15) + data[1024:])
    np.testing.assert_allclose(read_recording(path, RATE), tone, atol=1e-4)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"a\.sph is truncated"):
        read_recording(path, RATE)


def test_a_chunk_of_odd_size_ends_with_a_byte_more(folder):
    path, whole = folder / NAMES[0], read(folder, NAMES[:1])
    data = path.read_bytes()
    at = data.index(b"data")
    odd = b"LIST" + (3).to_bytes(4, "little") + b"abc\0"
    path.write_bytes(data[:4] + bytes(4) + data[8:at] + odd + data[at:])
    np.testing.assert_array_equal(read(folder, NAMES[:1])[NAMES[0]], whole[NAMES[0]])
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"0_ann_0\.wav is truncated"):
        read(folder, NAMES[:1])


@pytest.mark.parametrize("kind", ["AIFF", "AU", "W64", "RF64", "OGG"])
def test_a_format_of_which_no_cut_would_be_seen_is_refused(folder, kind):
    soundfile.write(folder / NAMES[0], np.zeros(300), RATE, format=kind)
    with pytest.raises(ValueError, match=rf"must be one of WAV, .*, got {kind}"):
        read(folder, NAMES[:1])


@pytest.mark.parametrize(
    ("riff", "size"),
    [
        *((n, n) for n in (0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0)),
        (0x7FFFF024, 0x7FFFF000),
        # a header that was whole before the first sample
        (36, 0),
    ],
)
@pytest.mark.parametrize(
    ("kind", "order"), [("WAV", "little"), ("WAVEX", "little"), ("WAV", "big")]
)
def test_a_wav_that_was_written_into_a_pipe_is_read(folder, riff, size, kind, order):
    path = folder / NAMES[0]
    given = np.random.RandomState(0).randn(300) / 10
    soundfile.write(path, given, RATE, format=kind, subtype="PCM_16", endian=order)
    data, whole = path.read_bytes(), read(folder, NAMES[:1])[NAMES[0]]
    at = data.index(b"data")
    listed = b"LIST" + (3).to_bytes(4, order) + b"abc\0"
    for before in (b"", listed, listed[:-1]):
        sizes = [n.to_bytes(4, order) for n in (riff, size)]
        path.write_bytes(
            data[:4] + sizes[0] + data[8:at] + before + b"data" + sizes[1] + data[at + 8 :]
        )
        np.testing.assert_array_equal(read(folder, NAMES[:1])[NAMES[0]], whole)


def test_a_recording_without_a_sample_has_none_although_something_follows(folder):
    path = folder / NAMES[0]
    write(path, np.zeros(0))
    data = path.read_bytes() + b"LIST" + (4).to_bytes(4, "little") + b"abcd"
    path.write_bytes(data[:4] + (len(data) - 8).to_bytes(4, "little") + data[8:])
    assert len(read(folder, NAMES[:1])[NAMES[0]]) == 0


@pytest.mark.parametrize("wrong", [-8, 1, 8])
def test_the_samples_alone_must_be_whole(folder, wrong):
    path, whole = folder / NAMES[0], read(folder, NAMES[:1])
    data = path.read_bytes() + b"LIST" + (40).to_bytes(4, "little") + b"cut"
    path.write_bytes(data[:4] + (len(data) - 8 + wrong).to_bytes(4, "little") + data[8:])
    np.testing.assert_array_equal(read(folder, NAMES[:1])[NAMES[0]], whole[NAMES[0]])


@pytest.mark.parametrize("mode", [None, "w:gz"])
def test_names_in_another_case_and_what_macos_adds(folder, mode):
    (folder / "deeper").mkdir()
    (folder / NAMES[0]).rename(folder / "deeper" / NAMES[0].upper())
    (folder / f"._{NAMES[0]}").write_bytes(b"\0\5\x16\7")
    (folder / "deeper" / NAMES[1]).write_bytes(b"a copy that is less near")
    assert set(read(folder if mode is None else pack(folder, mode))) == set(NAMES)


def test_flac_is_read_and_refused_where_it_was_cut(folder):
    path, tone = folder / NAMES[0], np.sin(np.arange(8000) / 9) / 2
    soundfile.write(path, tone, RATE, format="FLAC")
    np.testing.assert_allclose(read(folder, NAMES[:1])[NAMES[0]], tone, atol=1e-4)
    data = path.read_bytes()
    for size in range(0, len(data), 50):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"0_ann_0\.wav is not a recording: [^<]*$"):
            read(folder, NAMES[:1])


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_an_archive_that_is_truncated_is_named(folder, mode):
    path = pack(folder, mode)
    data = path.read_bytes()
    for size in (0, 1, 10, len(data) // 2):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"recordings\.tar is truncated"):
            read(path)


def test_of_an_archive_cut_anywhere_no_part_of_a_recording_is_read(folder):
    path, whole = pack(folder, "w"), read(folder)
    data = path.read_bytes()
    errors = 0
    for size in range(0, len(data), 100):
        path.write_bytes(data[:size])
        try:
            found = read(path)
        except (ValueError, FileNotFoundError):
            errors += 1
        else:
            assert all(np.array_equal(found[name], whole[name]) for name in NAMES)
    assert errors > 30


def test_what_is_no_archive_is_named(folder, tmp_path):
    path = tmp_path / "text.tar.xz"
    path.write_bytes(lzma.compress(b"not an archive"))
    with pytest.raises(ValueError, match=r"text\.tar\.xz is truncated or no tar archive"):
        read(path)


@pytest.mark.parametrize(
    ("samples", "rate", "subtype", "what"),
    [
        (np.zeros(300), 16000, "PCM_16", "must have 8000 samples a second, got 16000"),
        (np.zeros((300, 2)), RATE, "PCM_16", "must have one channel, got 2"),
        (np.array([0.0, 0.1, np.nan, 0.2]), RATE, "FLOAT", "has nan at sample 2"),
        (np.array([0.0, np.inf]), RATE, "FLOAT", "has inf at sample 1"),
    ],
)
def test_recordings_of_another_kind(folder, samples, rate, subtype, what):
    write(folder / NAMES[0], samples, rate, subtype)
    with pytest.raises(ValueError, match=rf"0_ann_0\.wav {what}"):
        read(folder)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"not a recording at all", bytes(100)])
def test_what_is_no_recording(folder, data):
    (folder / NAMES[0]).write_bytes(data)
    with pytest.raises(ValueError, match=r"0_ann_0\.wav is (truncated|not a recording)"):
        read(folder)


def test_a_recording_of_hours_is_refused_by_its_header(folder):
    soundfile.write(folder / "long.flac", np.zeros(3601 * RATE, np.int16), RATE)
    packed = (folder / "long.flac").read_bytes()
    (folder / NAMES[0]).write_bytes(packed)
    with pytest.raises(
        ValueError, match=r"0_ann_0\.wav is too large.* limit of 3600 seconds; RNNORM_LIMITS=2"
    ):
        read(folder)
