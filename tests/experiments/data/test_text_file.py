import gzip
import lzma
import tracemalloc
import zipfile

import pytest

from rnnorm.experiments.data import text_file
from rnnorm.experiments.data.text_file import TextError, find_text, place, read_text

TEXT = "größer ist π\nund ein Ende\n" * 20


def packed(path, data):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".xz":
        path.write_bytes(lzma.compress(data))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("text", data)
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zip"])
def test_plain_and_compressed_text(tmp_path, ending):
    path = packed(tmp_path / f"text{ending}", TEXT.encode())
    assert read_text(path) == TEXT
    assert find_text(tmp_path, "text") == path
    assert find_text(tmp_path, "other") is None


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize("left", [20, 40])
def test_truncated_compressed_text(tmp_path, ending, left):
    path = packed(tmp_path / f"text{ending}", TEXT.encode())
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(TextError, match=rf"text{ending} is truncated: it ends at byte {left}"):
        read_text(path)


def test_truncated_zip(tmp_path):
    path = packed(tmp_path / "text.zip", TEXT.encode())
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(TextError, match=r"text\.zip is corrupted.*after 0 unpacked bytes"):
        read_text(path)


def test_corrupted_compressed_text(tmp_path):
    path = packed(tmp_path / "text.gz", TEXT.encode())
    data = bytearray(path.read_bytes())
    data[15] ^= 255
    path.write_bytes(data)
    with pytest.raises(TextError, match=r"text\.gz is corrupted"):
        read_text(path)


def test_what_is_not_compressed_although_named_so(tmp_path):
    (tmp_path / "text.xz").write_bytes(b"plain, not packed")
    with pytest.raises(TextError, match=r"text\.xz is corrupted"):
        read_text(tmp_path / "text.xz")


def test_a_zip_of_two_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("a", "a")
        archive.writestr("b", "b")
    with pytest.raises(TextError, match="must hold one file, it holds 2"):
        read_text(tmp_path / "text.zip")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty: it has no text at byte 0"),
        (b"abc\0def", "is binary: it has 00 at byte 3"),
        ("π".encode() + b"\x01", "is binary: it has 01 at byte 2"),
        (b"abc\xff\xfe", "is no UTF-8 text: it has ff at byte 3"),
        (b"ab" + "π".encode()[:1], "is truncated: it ends in the middle of a character at byte 2"),
    ],
)
def test_what_is_no_text(tmp_path, data, what):
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(TextError, match=f"text {what}"):
        read_text(tmp_path / "text")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "text")


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zip"])
def test_what_unpacks_to_more_than_the_limit_is_refused_on_the_way(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(text_file, "LIMIT", 1 << 20)
    path = packed(tmp_path / f"text{ending}", b"a" * (40 << 20))
    tracemalloc.start()
    with pytest.raises(TextError, match=rf"text{ending} is too large.* 1,048,576 bytes, the limit"):
        read_text(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_what_is_as_large_as_the_limit_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_file, "LIMIT", len(TEXT.encode()))
    assert read_text(packed(tmp_path / "text.gz", TEXT.encode())) == TEXT


def test_an_encrypted_zip_is_named(tmp_path):
    path = packed(tmp_path / "text.zip", TEXT.encode())
    data = bytearray(path.read_bytes())
    # the flag of encryption, in both headers of the file
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(TextError, match=r"text\.zip cannot be unpacked: .*encrypted"):
        read_text(path)


@pytest.mark.parametrize("field", [10, 12])
def test_an_impossible_date_in_a_zip_does_not_matter(tmp_path, field):
    path = packed(tmp_path / "text.zip", TEXT.encode())
    data = bytearray(path.read_bytes())
    for header, at in ((b"PK\3\4", field), (b"PK\1\2", field + 2)):
        place = data.index(header) + at
        data[place : place + 2] = b"\xff\xff"
    path.write_bytes(data)
    assert read_text(path) == TEXT


def test_byte_order_mark_and_carriage_returns_are_no_symbols(tmp_path):
    path = packed(tmp_path / "text.gz", b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert read_text(path) == TEXT


def test_the_place_of_a_character():
    assert [place("ab\nc", i) for i in (0, 1, 3)] == [
        "line 1, column 1",
        "line 1, column 2",
        "line 2, column 1",
    ]
