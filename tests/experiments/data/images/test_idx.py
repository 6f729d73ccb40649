import gzip
import struct
import zlib

import numpy as np
import pytest

from rnnorm.experiments.data.images import read_idx
from rnnorm.experiments.files import BrokenFileError

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def packed(array, shape=None, magic=None):
    shape = array.shape if shape is None else shape
    magic = bytes((0, 0, 8, len(shape))) if magic is None else magic
    return magic + struct.pack(f">{len(shape)}I", *shape) + array.tobytes()


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "images.gz"


def refusal(path, dimensions=3):
    with pytest.raises(BrokenFileError) as error:
        read_idx(path, dimensions)
    assert str(path) in str(error.value)
    return str(error.value)


def test_reads_images_and_labels(file):
    write(file, gzip.compress(packed(IMAGES)))
    assert (read_idx(file, 3) == IMAGES).all()
    write(file, gzip.compress(packed(IMAGES[0, 0])))
    assert read_idx(file, 1).tolist() == [0, 1, 2, 3]


def test_reads_more_than_one_chunk(file):
    array = np.random.default_rng(0).integers(0, 256, (70, 200, 200), np.uint8)
    write(file, gzip.compress(packed(array)))
    assert (read_idx(file, 3) == array).all()


def test_reads_data_that_packs_well(file):
    array = np.zeros((100, 28, 28), np.uint8)
    write(file, gzip.compress(packed(array), 9))
    assert (read_idx(file, 3) == array).all()


def test_empty_file(file):
    assert "nothing at byte 0" in refusal(write(file, b""))


def test_what_a_browser_has_unpacked_is_read(file):
    assert (read_idx(write(file, packed(IMAGES)), 3) == IMAGES).all()
    assert "not 00 00 08 03" in refusal(write(file, b"neither"))


def test_empty_gzip(file):
    assert "nothing at byte 0" in refusal(write(file, gzip.compress(b"")))


@pytest.mark.parametrize("magic", [b"\0\0\x08\x01", b"\0\0\x0d\x03", b"\x01\0\x08\x03"])
def test_wrong_magic(file, magic):
    message = refusal(write(file, gzip.compress(packed(IMAGES, magic=magic))))
    assert magic.hex(" ") in message
    assert "not 00 00 08 03" in message
    assert "byte 0" in message


def test_every_truncation_of_the_gzip_data_is_refused(file):
    whole = gzip.compress(packed(IMAGES))
    for size in range(2, len(whole)):
        message = refusal(write(file, whole[:size]))
        assert "truncated" in message
        assert f"byte {size}" in message


def test_every_changed_byte_of_the_compressed_data_is_refused(file):
    whole = gzip.compress(packed(IMAGES), mtime=0)
    for place in range(10, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x55
        refusal(write(file, bytes(changed)))


def test_wrong_checksum(file):
    whole = gzip.compress(packed(IMAGES))
    message = refusal(write(file, whole[:-8] + b"\0\0\0\0" + whole[-4:]))
    assert "corrupted: CRC check failed" in message


def test_header_cut_off(file):
    message = refusal(write(file, gzip.compress(packed(IMAGES)[:10])))
    assert "truncated" in message
    assert "byte 10" in message


def test_values_cut_off(file):
    message = refusal(write(file, gzip.compress(packed(IMAGES)[:-5])))
    assert "truncated: unpacked, it ends at byte 35, not at 40" in message


def test_values_after_the_end(file):
    message = refusal(write(file, gzip.compress(packed(IMAGES) + b"\0")))
    assert "oversized: unpacked, it ends at byte 41, not at 40" in message


def test_bytes_after_the_gzip_data(file):
    whole = gzip.compress(packed(IMAGES))
    message = refusal(write(file, whole + b"abc"))
    assert r"corrupted: Not a gzipped file (b'ab')" in message


def test_header_that_announces_too_much(file):
    message = refusal(write(file, gzip.compress(packed(IMAGES, shape=(2**32 - 1,) * 3))))
    assert f"ends at byte 40, not at {16 + (2**32 - 1) ** 3}" in message


def test_bomb_is_not_unpacked(file):
    bomb = zlib.compressobj(9, wbits=31)
    data = bomb.compress(packed(IMAGES)) + b"".join(
        bomb.compress(bytes(1 << 20)) for _ in range(64)
    )
    assert "more than 67,108,864 bytes, the limit" in refusal(write(file, data + bomb.flush()))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "none.gz", 1)
