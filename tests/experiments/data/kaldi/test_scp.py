import pytest

from rnnorm.experiments.data.kaldi.archive import MatrixPosition, read_scp


def scp(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "feats.scp").write_text(text, encoding="utf-8")
    return folder / "feats.scp"


def test_archives_are_looked_for_beside_the_file_then_in_the_working_directory(tmp_path):
    folder = tmp_path / "data"
    path = scp(folder, "one a.ark:7\n\ntwo\tb.ark:12 \nthree  c.ark\n \n")
    (folder / "a.ark").touch()
    (folder / "c.ark").touch()
    (tmp_path / "cwd" / "a.ark").touch()
    (tmp_path / "cwd" / "b.ark").touch()
    positions = read_scp(path)
    assert list(positions) == ["one", "two", "three"]
    assert positions["one"] == MatrixPosition(folder / "a.ark", 7)
    assert positions["two"].path.samefile(tmp_path / "cwd" / "b.ark")
    assert positions["three"] == MatrixPosition(folder / "c.ark", 0)


def test_an_archive_that_does_not_exist_is_named(tmp_path):
    path = scp(tmp_path / "data", f"one {tmp_path}/gone.ark:7\n")
    with pytest.raises(FileNotFoundError, match=r"feats.scp, line 1 names .*gone\.ark, which is"):
        read_scp(path)


@pytest.mark.parametrize(
    "command", ["touch ran |", "| touch ran", "copy-feats ark:feats.ark ark:- |", "touch ran|"]
)
def test_no_command_is_run(tmp_path, command):
    path = scp(tmp_path / "data", f"one {command}\n")
    with pytest.raises(ValueError, match=r"line 1 is a command, and none is run"):
        read_scp(path)
    assert not list((tmp_path / "cwd").iterdir())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("one a.ark:7\none a.ark:9\n", "line 2 names utterance 'one' a second time"),
        ("one\n", "line 1 must be an utterance and its archive, got 'one'"),
        ("one a.ark:7[0:9]\n", "line 1 names a range of rows, which is not read"),
        ("", "is empty"),
    ],
)
def test_broken_lines(tmp_path, text, what):
    path = scp(tmp_path / "data", text)
    (path.parent / "a.ark").touch()
    with pytest.raises(ValueError, match=what):
        read_scp(path)


@pytest.mark.parametrize("offset", ["²", "٣", "-1", "1x", "9" * 5000, ""])
def test_an_offset_that_is_no_plain_number_is_named(tmp_path, offset):
    (tmp_path / "feats.ark").touch()
    path = scp(tmp_path, f"one feats.ark:0\ntwo feats.ark:{offset}\n")
    with pytest.raises(ValueError, match=r"feats\.scp, line 2 has the offset"):
        read_scp(path)
