import gzip

import kaldiio
import numpy as np
import pytest

from rnnorm.experiments.data.kaldi.alignments import read_int_vectors

VECTORS = {"one": np.int32([3, 1, 4, 1]), "two": np.int32([59]), "three": np.int32([2, 6, 5])}


def binary(path):
    kaldiio.save_ark(str(path), VECTORS)
    return path.read_bytes()


def text(path):
    lines = [f"{name} {' '.join(map(str, v))} \n" for name, v in VECTORS.items()]
    path.write_text("".join(lines))
    return path.read_bytes()


def same(found):
    assert list(found) == list(VECTORS)
    for name, vector in VECTORS.items():
        assert found[name].dtype == np.int32
        np.testing.assert_array_equal(found[name], vector)


@pytest.mark.parametrize("write", [binary, text])
def test_plain_and_gzipped(tmp_path, write):
    data = write(tmp_path / "ali.ark")
    same(read_int_vectors(tmp_path / "ali.ark"))
    (tmp_path / "ali.1.gz").write_bytes(gzip.compress(data))
    same(read_int_vectors(tmp_path / "ali.1.gz"))


def test_what_an_editor_adds_to_a_text(tmp_path):
    data = text(tmp_path / "ali.txt").replace(b"\n", b"\r\n\r\n")
    (tmp_path / "ali.txt").write_bytes(b"\xef\xbb\xbf" + data)
    same(read_int_vectors(tmp_path / "ali.txt"))


def test_a_tab_ends_a_name_too(tmp_path):
    lines = text(tmp_path / "ali.txt").splitlines(keepends=True)
    (tmp_path / "ali.txt").write_bytes(b"".join(line.replace(b" ", b"\t", 1) for line in lines))
    same(read_int_vectors(tmp_path / "ali.txt"))


@pytest.mark.parametrize("write", [binary, text])
def test_an_archive_cut_anywhere_is_an_error_but_between_utterances(tmp_path, write):
    path = tmp_path / "ali.ark"
    data = write(path)
    between = [data.index(name.encode()) for name in VECTORS]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size in between:
            # nothing can be seen to be missing
            assert list(read_int_vectors(path)) == list(VECTORS)[: between.index(size)]
        else:
            with pytest.raises(ValueError, match=r"ali\.ark"):
                read_int_vectors(path)


def test_a_gzipped_archive_cut_anywhere_is_an_error(tmp_path):
    data = gzip.compress(text(tmp_path / "ali.ark"))
    path = tmp_path / "ali.1.gz"
    for size in range(1, len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"ali\.1\.gz"):
            read_int_vectors(path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"one 1 2\none 3\n", "has utterance 'one' a second time, at byte 8"),
        (b"one 1 2.5\n", "no integers on the line at byte 4"),
        (b"one 1 9999999999\n", "no integers on the line at byte 4"),
        (b"one \0B\x08\1\0\0\0" + bytes(9), "no vector of 32-bit integers at byte 4"),
        (b"one \0B\4\xff\xff\xff\xff", "at byte 4"),
        (b"one\n1 2\n", "no utterance at byte 0"),
        (b"one \0BFM \4\1\0\0\0\4\1\0\0\0\0\0\0\0", "at byte 4"),
    ],
)
def test_broken_archives(tmp_path, data, what):
    path = tmp_path / "ali.ark"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=what):
        read_int_vectors(path)


def test_real_archives(kaldi_dir):
    samples = kaldi_dir / "io_formats"
    one, two = (read_int_vectors(samples / name) for name in ("ali.ark", "ali_ascii.ark"))
    assert len(one) == len(two) > 0
    assert all(np.array_equal(one[name], two[name]) for name in two)
