"""The compiled library and the Python beside it."""

import _ctypes
import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rnnorm.kernels.cpu import library


def test_the_library_has_the_struct_of_the_call():
    found, _ = library._load()
    assert found.rnnorm_layer_size() == ctypes.sizeof(library.CLayer)


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("nm"), reason="no nm of Linux")
def test_the_library_exports_what_its_header_declares():
    found, _ = library._load()
    header = (Path(__file__).parents[2] / "csrc" / "layer.h").read_text()
    declared = set(re.findall(r"^RNNORM_API .*?(\w+)\(", header, re.M))
    table = subprocess.run(
        ["nm", "-D", "--defined-only", found._name], check=True, capture_output=True, text=True
    ).stdout
    exported = {line.split()[-1] for line in table.splitlines()}
    assert {name for name in exported if name.startswith("rnnorm_")} == declared


def test_a_library_of_another_version_is_refused(monkeypatch):
    class Longer(ctypes.Structure):
        _fields_ = (*library.CLayer._fields_, ("new", ctypes.c_int64))

    monkeypatch.setattr(library, "CLayer", Longer)
    with pytest.raises(ImportError, match="another version of rnnorm: install the package again"):
        library._load()


def test_a_library_that_does_not_tell_its_version_is_refused(monkeypatch, tmp_path):
    # any library will do that has no such function
    (tmp_path / "librnnorm.so").symlink_to(Path(_ctypes.__file__))
    monkeypatch.setattr(library.cpu, "__path__", [str(tmp_path)])
    with pytest.raises(ImportError, match="another version of rnnorm: install the package again"):
        library._load()
