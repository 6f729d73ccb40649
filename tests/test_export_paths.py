"""An export refuses a path and names that do not fit before it works, and leaves nothing half."""

import logging
import os
import stat

import pytest
import torch

import rnnorm

pytest.importorskip("onnxruntime")


def write_onnx(path, **options):
    return rnnorm.export.onnx(rnnorm.RNN(3, 4), (torch.randn(4, 2, 3),), path, **options)


def write_c(path):
    return rnnorm.export.c(rnnorm.RNN(3, 4), path)


@pytest.mark.parametrize(("write", "ending"), [(write_onnx, "onnx"), (write_c, "c")])
def test_a_path_at_which_no_file_can_be_is_refused(write, ending, tmp_path):
    path = tmp_path / f"layer.{ending}"
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=f"path must name a file, but {path} is a folder"):
        write(path)
    path.rmdir()
    with pytest.raises(FileNotFoundError, match="path must be in a folder that exists"):
        write(tmp_path / "none" / path.name)
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        with pytest.raises(ValueError, match=f"{path} is a device or a pipe"):
            write(path)
        assert stat.S_ISFIFO(path.stat().st_mode)
    assert list(tmp_path.iterdir()) in ([path], [])


def test_a_path_without_a_name_is_refused():
    with pytest.raises(ValueError, match="path must name a file"):
        write_onnx("")


def test_a_file_of_a_partial_name_is_left_alone(tmp_path):
    other = tmp_path / "layer.c.partial"
    other.write_text("somebody's")
    write_c(tmp_path / "layer.c")
    assert other.read_text() == "somebody's"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["layer.c", "layer.c.partial", "layer.h"]


def test_an_error_of_writing_is_not_hidden_by_one_of_removing(tmp_path, monkeypatch):
    def refused(self, *_, **__):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(type(tmp_path), "write_text", refused)
    monkeypatch.setattr(type(tmp_path), "unlink", refused)
    with pytest.raises(OSError, match=r"Read-only file system: '.*layer\.h'"):
        write_c(tmp_path / "layer.c")


def test_names_without_a_tensor_are_refused(tmp_path):
    path = tmp_path / "layer.onnx"
    with pytest.raises(ValueError, match=r"input_names must be at most 1, .* \['a', 'b'\]"):
        write_onnx(path, input_names=["a", "b"])
    with pytest.raises(ValueError, match="output_names must be at most 2"):
        write_onnx(path, output_names=["a", "b", "c"])
    with pytest.raises(TypeError, match=r"must fit the model's forward: missing .* 'input'"):
        rnnorm.export.onnx(rnnorm.RNN(3, 4), (), path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(3,), (5, 2, 9), (2, 2, 2, 3)])
def test_frames_of_another_size_are_refused(shape, tmp_path):
    with pytest.raises(ValueError, match=r"frames must be an input of the layer, \(T, 3\)"):
        rnnorm.export.c(rnnorm.RNN(3, 4), tmp_path / "a.c", frames=torch.randn(shape))


def test_batch_first_in_float16_with_a_state_does_not_end_onnxruntime(tmp_path):
    layer = rnnorm.GRU(2, 8, batch_first=True, dtype=torch.float16)
    given = (torch.randn(3, 4, 2).half(), torch.zeros(1, 3, 8).half())
    sizes = rnnorm.export.onnx(layer, given, tmp_path / "layer.onnx")
    assert [len(size) for size in sizes.values()] == [3, 3]


def test_an_export_says_nothing_of_its_own(tmp_path, caplog):
    layer = rnnorm.GRU(1, 8)
    rnnorm.export.onnx(layer, (torch.randn(4, 3, 1),), tmp_path / "layer.onnx")
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
