"""The cache of users' compiled cells, with a script in the place of the compiler."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rnnorm.kernels import run_time_compilation
from rnnorm.kernels.cpu import compiled_files, compiler, library

pytestmark = [
    pytest.mark.skipif(bool(library.UNAVAILABLE), reason="the CPU kernels are missing"),
    pytest.mark.skipif(os.name == "nt", reason="nothing is compiled on Windows"),
]

# notes each call; what it makes depends on the options and on own.h
SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo "script 1.0"; exit; fi
echo "$@" >> "{notes}"
{body}
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then out=$2; fi; shift; done
cat own.h > "$out"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "cells"
    monkeypatch.setenv(run_time_compilation.FOLDER, str(folder))
    monkeypatch.setenv(run_time_compilation.SWITCH, "1")
    monkeypatch.delenv(compiler.TIMEOUT, raising=False)
    return folder


class Script:
    def __init__(self, path):
        self.path, self.notes = path / "c++", path / "notes"
        self.write("")

    def write(self, body):
        self.path.write_text(SCRIPT.format(notes=self.notes, body=body))
        self.path.chmod(0o755)
        # the answer to --version is kept until the file changes
        os.utime(self.path, ns=(0, time.monotonic_ns()))

    def calls(self):
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def script(tmp_path, monkeypatch):
    script = Script(tmp_path)
    monkeypatch.setenv("CXX", str(script.path))
    return script


def compile(header="struct Own;", numbers="float"):
    return compiler.compile(header, numbers, "the cell Mine")


def test_the_same_is_compiled_once(script, folder):
    path = compile()
    assert compile() == path
    assert path.read_text() == "struct Own;"
    assert len(script.calls()) == 3
    assert "-DRNNORM_OWN=float" in script.calls()[0]
    assert [file.name for file in folder.iterdir()] == [path.name]


def test_header_numbers_compiler_and_sources_are_in_the_key(script, monkeypatch):
    paths = {compile(), compile("struct Own {};"), compile(numbers="double")}
    if library.multiplies_bfloat16():
        paths.add(compile(numbers="bfloat16"))
        assert "-DRNNORM_PAIRS" in script.calls()[-2]
    script.path.write_text(script.path.read_text().replace("script 1.0", "script 1.1"))
    paths.add(compile())
    monkeypatch.setattr(compiler, "_digest_of", lambda folder: "others")
    paths.add(compile())
    assert len(paths) == 5 + library.multiplies_bfloat16()


def test_a_message_says_that_a_cell_is_compiled_and_how_long_it_took(script, caplog):
    path = compile()
    first, second = [record.getMessage() for record in caplog.records]
    assert "the cell Mine is compiled" in first
    assert "script 1.0" in first
    assert re.search(r"compiled in \d+\.\d s", second)
    assert str(path) in second
    caplog.clear()
    compile()
    assert not caplog.records


DAMAGES = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "another": lambda data: b"struct Bad;",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(script, folder, damage, caplog):
    path = compile()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    caplog.clear()
    assert compile() == path
    assert path.read_text() == "struct Own;"
    assert len(script.calls()) == 6
    assert "is not what was written" in caplog.text


def test_a_file_of_another_cell_under_its_name_is_made_anew(script, folder):
    path, other = compile(), compile("struct Bad;")
    digest = other.name.partition("-")[2]
    other.rename(path.with_name(f"{path.name.partition('-')[0]}-{digest}"))
    path.unlink()
    assert compile() == path
    assert [file.name for file in folder.iterdir()] == [path.name]


def test_a_file_that_others_may_write_is_made_anew(script, caplog):
    path = compile()
    path.chmod(0o722)
    assert compile() == path
    assert path.stat().st_mode & 0o22 == 0
    assert "others may write (mode 722)" in caplog.text


def test_a_link_is_made_a_file(script, tmp_path):
    path = compile()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert compile() == path
    assert not path.is_symlink()


def test_a_folder_that_others_may_write_is_refused(script, folder):
    compile()
    folder.chmod(0o777)
    with pytest.raises(compiler.CompilationError, match=r"others may write \(mode 777\).*chmod"):
        compile()


def test_a_folder_of_another_user_is_refused(script, folder, monkeypatch):
    compile()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(compiler.CompilationError, match=r"belongs to the user \d+"):
        compile()


def test_a_folder_that_cannot_be_made_is_named(script, folder):
    folder.parent.write_text("")
    with pytest.raises(compiler.CompilationError, match=f"{folder}.*RNNORM_CACHE"):
        compile()


def test_other_users_cannot_read_the_cache(script, folder):
    path = compile()
    assert {file.stat().st_mode & 0o77 for file in (folder, path)} == {0}


def test_the_cache_may_be_deleted(script, folder):
    path = compile()
    path.unlink()
    folder.rmdir()
    assert compile() == path


def test_the_cache_may_be_deleted_while_a_cell_is_compiled(script, folder):
    # by the first of all calls
    done = f"{script.path}.done"
    script.write(f'if [ ! -e "{done}" ]; then touch "{done}"; rm -r "{folder}"; fi')
    path = compile()
    assert path.read_text() == "struct Own;"


def test_an_error_has_the_compilers_first_lines(script, folder):
    script.write("echo 'own.h:1: error: no such thing' >&2; exit 3")
    with pytest.raises(compiler.CompilationError, match=r"failed \(3\):\nown.h:1: error: no such"):
        compile()
    assert not list(folder.iterdir())


def test_a_compiler_that_can_write_no_error_may_have_a_full_disk(script, folder):
    script.write("exit 1")
    with pytest.raises(compiler.CompilationError, match=r"failed \(1\):\nwithout a message, as"):
        compile()


def test_a_full_disk_leaves_nothing(script, folder, monkeypatch):
    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(compiler.CompilationError, match="No space left"):
        compile()
    assert not list(folder.iterdir())


def test_a_compiler_that_hangs_is_ended_with_its_children(script, folder, monkeypatch):
    script.write(f'sleep 60 & echo $! >> "{script.path}.pids"; wait')
    monkeypatch.setenv(compiler.TIMEOUT, "0.5")
    with pytest.raises(compiler.CompilationError, match="not ready in time: RNNORM_COMPILE_TIM"):
        compile()
    assert not list(folder.iterdir())
    assert ended(script)


def ended(script):
    """Tell whether the processes are gone whose numbers the script has noted."""
    pids = [int(line) for line in Path(f"{script.path}.pids").read_text().split()]
    assert pids
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        states = [subprocess.run(["ps", "-o", "stat=", str(p)], capture_output=True) for p in pids]
        if all(each.stdout.strip()[:1] in (b"", b"Z") for each in states):
            return True
        time.sleep(0.02)
    return False


def test_control_c_leaves_no_file_and_no_process(script, folder):
    script.write(f'sleep 60 & echo $! >> "{script.path}.pids"; wait')

    def interrupt():
        while not Path(f"{script.path}.pids").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compile()
    thread.join()
    assert not list(folder.iterdir())
    assert ended(script)


@pytest.mark.parametrize("given", ["0", "-1", "nan", "long"])
def test_a_time_that_is_none_is_refused(script, monkeypatch, given):
    monkeypatch.setenv(compiler.TIMEOUT, given)
    with pytest.raises(ValueError, match=f"RNNORM_COMPILE_TIMEOUT must be .* got '{given}'"):
        compile()


def test_threads_and_processes_compile_once(script, folder):
    script.write("sleep 0.3")
    program = (
        "from rnnorm.kernels.cpu import compiler\n"
        "print(compiler.compile('struct Own;', 'float', 'the cell Mine'))"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = []
    threads = [threading.Thread(target=lambda: found.append(compile())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found += [Path(other.communicate()[0].strip()) for other in others]
    assert len({*found}) == 1
    assert len(script.calls()) == 3
    assert [file.name for file in folder.iterdir()] == [found[0].name]


def test_one_who_waits_too_long_for_another_is_refused(script, folder, monkeypatch):
    path = compile()
    path.unlink()
    monkeypatch.setenv(compiler.TIMEOUT, "0.2")
    key = path.name.partition("-")[0]
    with (
        compiled_files.locked(folder / f"{key}.lock", 1.0),
        pytest.raises(compiler.CompilationError, match=r"another process compiles .* 0.2 s"),
    ):
        compile()
    monkeypatch.delenv(compiler.TIMEOUT)
    assert compile() == path


def test_a_forked_process_loads_and_does_not_compile(script, monkeypatch):
    path = compile()
    monkeypatch.setattr(library, "_forked", True)
    assert compile() == path
    with pytest.raises(compiler.CompilationError, match="forked process: call the layer once"):
        compile("struct Own {};")


def test_compiling_may_be_switched_off(script, monkeypatch):
    compile()
    monkeypatch.setenv(run_time_compilation.SWITCH, "0")
    assert "RNNORM_COMPILE=0" in compiler.unavailable()
    with pytest.raises(compiler.CompilationError, match="RNNORM_COMPILE=0"):
        compile()


def test_nothing_is_compiled_on_windows(monkeypatch):
    monkeypatch.setattr(compiler.sys, "platform", "win32")
    assert "not compiled on Windows" in compiler.unavailable()


def test_a_compiler_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX=no-such-compiler is not a C" in compiler.unavailable()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install g++ or clang++" in compiler.unavailable()


def test_a_compiler_with_arguments(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "c++ -O1 -g0")
    assert compiler._compiler()[1:] == ["-O1", "-g0"]
    path = tmp_path / "own c++"
    path.touch(0o755)
    monkeypatch.setenv("CXX", str(path))
    assert compiler._compiler() == [str(path)]


def test_what_is_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(compiler.CompilationError, match=r"false is not a C\+\+ compiler"):
        compile()


def test_a_user_without_a_home(script, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in (run_time_compilation.FOLDER, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(compiler.CompilationError, match="home directory"):
        compile()


def test_the_log_shows_what_is_compiled_by_default():
    assert logging.getLogger("rnnorm").isEnabledFor(logging.WARNING)
