"""The compiled library and the Python beside it."""

import _ctypes
import ctypes
from pathlib import Path

import pytest

from rnnorm.kernels.cpu import library


def test_the_library_has_the_struct_of_the_call():
    found, _ = library._load()
    assert found.rnnorm_layer_size() == ctypes.sizeof(library.Layer)


def test_a_library_of_another_version_is_refused(monkeypatch):
    class Longer(ctypes.Structure):
        _fields_ = (*library.Layer._fields_, ("new", ctypes.c_int64))

    monkeypatch.setattr(library, "Layer", Longer)
    with pytest.raises(ImportError, match="another version of rnnorm: install the package again"):
        library._load()


def test_a_library_that_does_not_tell_its_version_is_refused(monkeypatch, tmp_path):
    # any library will do that has no such function
    (tmp_path / "librnnorm.so").symlink_to(Path(_ctypes.__file__))
    monkeypatch.setattr(library.cpu, "__path__", [str(tmp_path)])
    with pytest.raises(ImportError, match="another version of rnnorm: install the package again"):
        library._load()
