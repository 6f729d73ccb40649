import gzip
import io
import tarfile

import pytest

from rnnorm.experiments import files as whole_file
from rnnorm.experiments.data.tar_file import read_members
from rnnorm.experiments.files import BrokenFileError


def pack(path, members, form=tarfile.GNU_FORMAT):
    """A plain archive of ``TarInfo`` and the bytes of each."""
    with tarfile.open(path, "w", format=form) as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def read(path):
    return {str(name): data for name, data in read_members(path, lambda names: names)}


def sparse(name, size):
    """The header of a GNU sparse member without any data."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    # where data stands: nothing at the end; then the size that it unpacks to
    header[386:410] = f"{size:011o}\0{0:011o}\0".encode()
    header[483:495] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header[:512]):06o}\0 ".encode()
    return bytes(header)


def dated(seconds):
    """An archive of an empty file, with these bytes for its date."""
    header = bytearray(tarfile.TarInfo("a").tobuf(tarfile.GNU_FORMAT))
    header[136:148] = seconds
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + bytes(1024)


def test_the_files_that_are_chosen_in_their_order(tmp_path):
    path = pack(tmp_path / "a.tar", [(tarfile.TarInfo(f"d/{n}"), n.encode()) for n in "cab"])
    found = read_members(path, lambda names: [n for n in names if n.name in "ac"])
    assert [(str(name), data) for name, data in found] == [("d/c", b"c"), ("d/a", b"a")]


def test_a_sparse_member_of_64_gigabytes_is_not_unpacked(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(sparse("qa1.txt", 64 << 30).ljust(2048, b"\0"))
    with tarfile.open(path) as archive:
        assert [member.size for member in archive] == [64 << 30]
    with pytest.raises(
        BrokenFileError, match=r"a\.tar, .*qa1\.txt, is too large.* 1,073,741,824 bytes"
    ):
        read(path)


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_file, "LIMIT", 1 << 20)
    path = pack(tmp_path / "a", [(tarfile.TarInfo("a"), bytes(2 << 20))])
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert path.stat().st_size < 1 << 12
    with pytest.raises(BrokenFileError, match="more than 1,048,576 bytes, the limit"):
        read(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_what_is_no_file_is_named(tmp_path, kind):
    member = tarfile.TarInfo("d/qa1.txt")
    member.type, member.linkname = kind, "elsewhere"
    path = pack(tmp_path / "a.tar", [(member, b"")])
    with pytest.raises(BrokenFileError, match=r"a\.tar, d/qa1\.txt is a link or a folder"):
        read(path)


def test_a_wrong_checksum_of_the_whole_is_refused(tmp_path):
    path = pack(tmp_path / "a", [(tarfile.TarInfo("a"), b"text")])
    data = bytearray(gzip.compress(path.read_bytes()))
    data[-8] ^= 1
    path.write_bytes(data)
    with pytest.raises(BrokenFileError, match="a is corrupted: CRC check failed"):
        read(path)


def test_a_broken_header_does_not_end_an_archive(tmp_path):
    path = pack(tmp_path / "a.tar", [(tarfile.TarInfo(name), b"text") for name in "abc"])
    data = bytearray(path.read_bytes())
    data[1024 + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(BrokenFileError, match="no header of a member at byte 1024"):
        read(path)


def test_a_negative_size_does_not_lead_back(tmp_path):
    header = bytearray(tarfile.TarInfo("a").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" + (-512).to_bytes(11, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(BrokenFileError, match=r"a\.tar is truncated or no tar archive"):
        read(path)


@pytest.mark.parametrize("seconds", [b"\x80" + b"\xff" * 11, b"\xff" * 12, b"77777777777\0"])
def test_a_date_that_no_calendar_has_does_no_harm(tmp_path, seconds):
    path = tmp_path / "a.tar"
    path.write_bytes(dated(seconds))
    assert read(path) == {"a": b""}


def test_a_date_that_is_no_number_is_refused(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(dated(b"tomorrow\0\0\0\0"))
    with pytest.raises(
        BrokenFileError, match=r"a\.tar is truncated or no tar archive: invalid header"
    ):
        read(path)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1e300", "tomorrow"])
def test_a_long_date_that_is_none_does_no_harm(tmp_path, seconds):
    member = tarfile.TarInfo("a")
    member.pax_headers = {"mtime": seconds}
    path = pack(tmp_path / "a.tar", [(member, b"text")], tarfile.PAX_FORMAT)
    assert read(path) == {"a": b"text"}
