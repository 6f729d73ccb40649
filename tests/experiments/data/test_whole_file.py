import gzip
import io
import lzma
import os
import socket
import tracemalloc
import zipfile

import pytest

from rnnorm.experiments import files as whole_file
from rnnorm.experiments.files import BrokenFileError, check_size, read_into, unpack

DATA = bytes(range(256)) * 4


def packed(path, data):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".xz":
        path.write_bytes(lzma.compress(data))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("data", data)
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zip"])
def test_plain_and_compressed_files(tmp_path, ending):
    assert unpack(packed(tmp_path / f"data{ending}", DATA)) == DATA


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        unpack(tmp_path / "data")


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize("left", [20, 40])
def test_truncated_compressed_file(tmp_path, ending, left):
    path = packed(tmp_path / f"data{ending}", DATA)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(
        BrokenFileError, match=rf"data{ending} is truncated: it ends at byte {left}"
    ):
        unpack(path)


def test_truncated_zip(tmp_path):
    path = packed(tmp_path / "data.zip", DATA)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BrokenFileError, match=r"data\.zip is corrupted.*after 0 unpacked bytes"):
        unpack(path)


def test_corrupted_compressed_file(tmp_path):
    path = packed(tmp_path / "data.gz", DATA)
    data = bytearray(path.read_bytes())
    data[15] ^= 255
    path.write_bytes(data)
    with pytest.raises(BrokenFileError, match=r"data\.gz is corrupted"):
        unpack(path)


def test_what_is_not_compressed_although_named_so(tmp_path):
    (tmp_path / "data.xz").write_bytes(b"plain, not packed")
    with pytest.raises(BrokenFileError, match=r"data\.xz is corrupted"):
        unpack(tmp_path / "data.xz")


def test_a_zip_of_two_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("a", "a")
        archive.writestr("b", "b")
    with pytest.raises(BrokenFileError, match="must hold one file, it holds 2"):
        unpack(tmp_path / "data.zip")


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zip"])
def test_what_unpacks_to_more_than_the_limit_is_refused_on_the_way(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(whole_file, "LIMIT", 1 << 20)
    path = packed(tmp_path / f"data{ending}", b"a" * (40 << 20))
    tracemalloc.start()
    with pytest.raises(
        BrokenFileError, match=rf"data{ending} is too large.* 1,048,576 bytes, the limit"
    ):
        unpack(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_what_is_as_large_as_the_limit_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_file, "LIMIT", len(DATA))
    assert unpack(packed(tmp_path / "data.gz", DATA)) == DATA


def test_an_encrypted_zip_is_named(tmp_path):
    path = packed(tmp_path / "data.zip", DATA)
    data = bytearray(path.read_bytes())
    # the flag of encryption, in both headers of the file
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(BrokenFileError, match=r"data\.zip cannot be unpacked: .*encrypted"):
        unpack(path)


@pytest.mark.parametrize("field", [10, 12])
def test_an_impossible_date_in_a_zip_does_not_matter(tmp_path, field):
    path = packed(tmp_path / "data.zip", DATA)
    data = bytearray(path.read_bytes())
    for header, at in ((b"PK\3\4", field), (b"PK\1\2", field + 2)):
        place = data.index(header) + at
        data[place : place + 2] = b"\xff\xff"
    path.write_bytes(data)
    assert unpack(path) == DATA


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zip"])
def test_the_first_bytes_say_how_a_file_is_compressed(tmp_path, ending):
    data = packed(tmp_path / f"data{ending}", DATA).read_bytes()
    for name in ("data", "data.gz", "data.GZ"):
        (tmp_path / name).write_bytes(data)
        assert unpack(tmp_path / name) == DATA
        assert unpack(tmp_path / name, "") == data


def test_gzip_of_several_members(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert unpack(tmp_path / "a.gz") == b"one two"


@pytest.mark.parametrize("forced", [False, True])
def test_a_zip_that_was_packed_again(tmp_path, forced):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.mkdir("top") if hasattr(archive, "mkdir") else archive.writestr("top/", "")
        with archive.open("top/data", "w", force_zip64=forced) as file:
            file.write(DATA)
        for name in ("__MACOSX/top/._data", "top/.DS_Store", "top/._data", "Thumbs.db"):
            archive.writestr(name, b"\0\5\x16\7")
    assert unpack(tmp_path / "a.zip") == DATA


def test_the_limits_can_be_raised(tmp_path, monkeypatch):
    path = packed(tmp_path / "data.gz", DATA)
    for limit in (100, 511):
        with pytest.raises(BrokenFileError, match=f"than {limit} bytes, .*; RNNORM_LIMITS=2 in"):
            unpack(path, limit=limit)
    monkeypatch.setenv("RNNORM_LIMITS", "2")
    assert unpack(path, limit=512) == DATA
    with pytest.raises(BrokenFileError, match=r"than 1,022 bytes, .*; RNNORM_LIMITS=4 in"):
        unpack(path, limit=511)
    with pytest.raises(BrokenFileError, match=r"it is too large: it has more than 6 words, the"):
        check_size(7, "it", 3, "words")


@pytest.mark.parametrize("given", ["", "0", "-1", "nan", "inf", "many", "1e7"])
def test_what_is_no_factor_of_the_limits_is_named(monkeypatch, given):
    monkeypatch.setenv("RNNORM_LIMITS", given)
    with pytest.raises(ValueError, match=f"RNNORM_LIMITS must be a number above 0.*got '{given}'"):
        check_size(1, "it")


def test_a_stream_without_an_end_is_left_at_the_limit():
    with open("/dev/zero", "rb") as zeros, pytest.raises(BrokenFileError, match="it is too large"):
        read_into(bytearray(), zeros, "it", 1 << 20)
    read_into(found := bytearray(), io.BytesIO(DATA), "it")
    assert found == DATA


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch, linked):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)
        bound.bind("socket")
        for name, kind in (("pipe", "pipe"), ("socket", "socket"), ("/dev/zero", "device")):
            path = tmp_path / name
            if linked:
                (tmp_path / kind).with_suffix(".gz").symlink_to(path)
                path = (tmp_path / kind).with_suffix(".gz")
            with pytest.raises(BrokenFileError, match=f"{path} is a {kind}, not a file"):
                unpack(path)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        unpack(tmp_path)
