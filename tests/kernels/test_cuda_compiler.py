import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from rnnorm.kernels import run_time_compilation
from rnnorm.kernels.cuda import compiler

SOURCE = """
struct Arguments { float* out; int n; };
extern "C" __global__ void fill(const Arguments a) {
  if (threadIdx.x < a.n) a.out[threadIdx.x] = VALUE;
}
"""


class Counting:
    """Stands for NVRTC, and records what it compiles."""

    version = "13.0"

    def __init__(self):
        self.calls = []

    def architectures(self):
        return [80, 90]

    def compile(self, source, options):
        self.calls.append(options)
        return f"{source} {options}".encode() * 100


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "kernels"
    monkeypatch.setenv(run_time_compilation.FOLDER, str(folder))
    return folder


@pytest.fixture
def nvrtc(monkeypatch):
    nvrtc = Counting()
    monkeypatch.setattr(compiler, "_load", lambda: (nvrtc, ""))
    return nvrtc


@pytest.fixture
def real_nvrtc():
    if reason := compiler.unavailable():
        pytest.skip(reason)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_nvrtc_compiles_and_the_cache_returns_the_same(real_nvrtc, architecture):
    cubin = compiler.compile(SOURCE, {"VALUE": 3}, architecture)
    assert cubin.startswith(b"\x7fELF")
    assert b"fill" in cubin
    assert compiler.compile(SOURCE, {"VALUE": 3}, architecture) == cubin
    assert compiler.compile(SOURCE, {"VALUE": 4}, architecture) != cubin


def test_an_error_names_the_variant_and_the_line(real_nvrtc, folder):
    with pytest.raises(RuntimeError, match=r"sm_80 -DVALUE=nothing .*\n.*\(4\): error: .*nothing"):
        compiler.compile(SOURCE, {"VALUE": "nothing"}, "sm_80")
    assert not folder.exists()


def test_an_error_has_the_first_errors_not_the_warnings_before_them(real_nvrtc):
    source = "#warning old\n" * 20 + "#error first\n" + "#error later\n" * 20
    with pytest.raises(RuntimeError, match=r"\nrnnorm.cu\(21\): .*error.*first") as raised:
        compiler.compile(source, {}, "sm_80")
    assert len(str(raised.value).splitlines()) <= 11


def test_an_architecture_that_nvrtc_does_not_know(nvrtc):
    with pytest.raises(RuntimeError, match="architecture sm_120, only for sm_80, sm_90: install"):
        compiler.compile("", {}, "sm_120")
    assert not nvrtc.calls


def test_nvrtc_that_is_missing(monkeypatch):
    monkeypatch.setattr(compiler, "_candidates", lambda: iter(["libnvrtc.so.0"]))
    compiler._load.cache_clear()
    try:
        assert "libnvrtc.so.0" in compiler.unavailable()
        with pytest.raises(RuntimeError, match=r"cannot be compiled: NVRTC .* pip install nvidia"):
            compiler.compile("", {}, "sm_80")
    finally:
        compiler._load.cache_clear()


def test_every_part_of_a_variant_is_in_the_key(nvrtc):
    for _ in range(2):
        compiler.compile("a", {"X": 1, "Y": "float"}, "sm_80")
        compiler.compile("a", {"Y": "float", "X": True}, "sm_80")
        assert len(nvrtc.calls) == 1
    others = [("b", {"X": 1, "Y": "float"}, "sm_80"), ("a", {"X": 1, "Y": "float"}, "sm_90")]
    others += [("a", {"X": 1}, "sm_80"), ("a", {"X": 2, "Y": "float"}, "sm_80")]
    for other in others:
        compiler.compile(*other)
    assert len(nvrtc.calls) == 5
    nvrtc.version = "13.1"
    compiler.compile("a", {"X": 1, "Y": "float"}, "sm_80")
    assert len(nvrtc.calls) == 6


def test_the_cache_may_be_deleted(nvrtc, folder):
    cubin = compiler.compile("a", {}, "sm_80")
    (file,) = folder.iterdir()
    file.unlink()
    folder.rmdir()
    assert compiler.compile("a", {}, "sm_80") == cubin
    assert [each.name for each in folder.iterdir()] == [file.name]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_other_users_cannot_read_or_write_the_cache(nvrtc, folder):
    compiler.compile("a", {}, "sm_80")
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _damages():
    yield "empty", lambda data, other: b""
    yield "cut", lambda data, other: data[:-1]
    yield "cut in the head", lambda data, other: data[:20]
    yield "longer", lambda data, other: data + b"x"
    yield "a flipped bit", lambda data, other: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    yield "foreign", lambda data, other: b"\x7fELF" + data
    yield "of another variant", lambda data, other: other


@pytest.mark.parametrize("damage", [pytest.param(d, id=name) for name, d in _damages()])
def test_a_damaged_file_is_compiled_again_and_replaced(nvrtc, folder, damage):
    compiler.compile("other", {}, "sm_80")
    (other,) = folder.iterdir()
    cubin = compiler.compile("a", {}, "sm_80")
    (file,) = set(folder.iterdir()) - {other}
    whole = file.read_bytes()
    file.write_bytes(damage(whole, other.read_bytes()))
    assert compiler.compile("a", {}, "sm_80") == cubin
    assert len(nvrtc.calls) == 3
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(nvrtc, folder, caplog):
    folder.parent.mkdir()
    folder.write_text("not a folder")
    with caplog.at_level(logging.INFO, "rnnorm"):
        cubin = compiler.compile("a", {}, "sm_80")
    assert "is not kept" in caplog.text
    assert compiler.compile("a", {}, "sm_80") == cubin
    assert len(nvrtc.calls) == 2


def test_a_full_disk_leaves_no_part_of_a_file(nvrtc, folder, monkeypatch, caplog):
    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with caplog.at_level(logging.INFO, "rnnorm"):
        assert compiler.compile("a", {}, "sm_80")
    assert "No space left" in caplog.text
    assert not list(folder.iterdir())


def test_a_user_without_a_home_compiles_each_time(nvrtc, monkeypatch, caplog):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in (run_time_compilation.FOLDER, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with caplog.at_level(logging.INFO, "rnnorm"):
        assert compiler.compile("a", {}, "sm_80") == compiler.compile("a", {}, "sm_80")
    assert len(nvrtc.calls) == 2
    assert "home directory" in caplog.text


def test_where_the_cache_is(monkeypatch, tmp_path):
    assert run_time_compilation.cache_folder("cuda") == tmp_path / "cache" / "kernels"
    monkeypatch.delenv(run_time_compilation.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run_time_compilation.cache_folder("cuda") == tmp_path / "rnnorm" / "cuda"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert run_time_compilation.cache_folder("cuda") == Path.home() / ".cache" / "rnnorm" / "cuda"


def test_writers_and_readers_at_once_see_whole_files(folder):
    def write(byte):
        for _ in range(50):
            compiler._store("key", bytes([byte]) * 100_000)

    write(0)
    writers = [threading.Thread(target=write, args=(byte,)) for byte in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        cubin = compiler._cached("key")
        assert cubin is not None
        assert len(cubin) == 100_000
        assert len(set(cubin)) == 1
    for writer in writers:
        writer.join()
    assert compiler._cached("key")[0] in (1, 2)
    assert [file.name for file in folder.iterdir()] == ["key.cubin"]
