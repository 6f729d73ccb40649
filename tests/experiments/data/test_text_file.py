import gzip

import pytest

from rnnorm.experiments.data.text_file import find_text, line_and_column, placed_lines, read_text
from rnnorm.experiments.files import BrokenFileError

TEXT = "größer ist π\nund ein Ende\n" * 20


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zip"])
def test_a_text_is_found_with_any_ending(tmp_path, ending):
    path = tmp_path / f"text{ending}"
    path.touch()
    assert find_text(tmp_path, "text") == path
    assert find_text(tmp_path, "other") is None


def test_plain_and_compressed_text(tmp_path):
    (tmp_path / "text").write_bytes(TEXT.encode())
    (tmp_path / "text.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert read_text(tmp_path / "text") == read_text(tmp_path / "text.gz") == TEXT


def test_lines_have_their_places(tmp_path):
    (tmp_path / "text").write_text("a\n\nb\n")
    path = tmp_path / "text"
    assert list(placed_lines(path)) == [
        (f"{path}, line 1", "a"),
        (f"{path}, line 3", "b"),
    ]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty: it has no text at byte 0"),
        (b"\xef\xbb\xbf", "is empty: it has no text at byte 0"),
        (b"abc\0def", "is binary: it has 00 at byte 3"),
        ("π".encode() + b"\x01", "is binary: it has 01 at byte 2"),
        (b"a\x7f", "is binary: it has 7f at byte 1"),
        (b"abc\xff\xfe", "is no UTF-8 text: it has ff at byte 3"),
        (b"ab" + "π".encode()[:1], "is truncated: it ends in the middle of a character at byte 2"),
    ],
)
def test_what_is_no_text(tmp_path, data, what):
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(BrokenFileError, match=f"text {what}"):
        read_text(tmp_path / "text")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "text")


def test_byte_order_mark_and_carriage_returns_are_no_symbols(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert read_text(path) == TEXT


@pytest.mark.parametrize("code", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, code):
    path = tmp_path / "text"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode(code))
    assert read_text(path) == TEXT
    for big in ("utf-16-be", "utf-32-be"):
        path.write_bytes(f"\ufeff{TEXT}".encode(big))
        assert read_text(path) == TEXT
    path.write_bytes("ab\x01".encode(code))
    at = len("ab".encode(code))
    with pytest.raises(BrokenFileError, match=f"text is binary: it has 01 at byte {at}"):
        read_text(path)
    path.write_bytes("".encode(code))
    with pytest.raises(BrokenFileError, match="text is empty"):
        read_text(path)


def test_a_text_that_is_cut_within_a_character_of_utf_16_is_named(tmp_path):
    (tmp_path / "text").write_bytes(TEXT.encode("utf-16")[:-1])
    with pytest.raises(BrokenFileError, match="text is truncated: it ends in the middle of a char"):
        read_text(tmp_path / "text")


def test_carriage_returns_end_lines_where_nothing_else_does(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a b\rc\r")
    assert read_text(path) == "a b\nc\n"
    # within a line, as some published corpora have it
    path.write_bytes(b"a\rb\r\nc\r\n")
    assert read_text(path) == "a\rb\nc\n"


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_text_in_a_folder_of_its_name_is_found(tmp_path, ending):
    path = tmp_path / "text" / f"text{ending}"
    path.parent.mkdir()
    path.touch()
    assert find_text(tmp_path, "text") == path


def test_the_place_of_a_character():
    assert [line_and_column("ab\nc", i) for i in (0, 1, 3)] == [
        "line 1, column 1",
        "line 1, column 2",
        "line 2, column 1",
    ]
