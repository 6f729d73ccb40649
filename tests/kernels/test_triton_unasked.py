"""Where the Triton kernels can run, and where they do so unasked."""

import sys
import warnings
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
import torch

from rnnorm.cells.gru import GRU
from rnnorm.cells.ligru import LiGRU
from rnnorm.cells.lstm import LSTM
from rnnorm.kernels.call import Request
from rnnorm.kernels.triton import layer
from rnnorm.norm.presets import resolve
from rnnorm.norm.spec import BatchNorm

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ("3.5.1", r"it needs Triton 3.6, installed is 3.5.1: pip install 'triton>=3.6'"),
        ("3.6.0", ""),
        ("3.10.0+git1", ""),
        # under a name of torch's own
        (None, ""),
    ],
)
def test_a_triton_that_is_too_old_is_named(installed, said, monkeypatch):
    def version(name):
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(layer, "find_spec", lambda name: True)
    monkeypatch.setattr(layer, "version", version)
    assert layer._unavailable() == said


@pytest.fixture
def gpu(monkeypatch):
    """Sets what torch says of a GPU, and what comes of a first launch there."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def describe(capability=(9, 0), hip=None, error=None, capturing=False):
        launches = []

        def launch(device):
            launches.append(device)
            if error is not None:
                raise error

        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        monkeypatch.setattr(torch.version, "hip", hip)
        module = SimpleNamespace(launch=launch)
        monkeypatch.setitem(sys.modules, "rnnorm.kernels.triton.probe", module)
        return launches

    monkeypatch.setattr(layer, "_broken", {})
    return describe


def test_on_a_gpu_they_are_tried_unasked_after_one_launch(gpu):
    launches = gpu()
    assert layer.unproven(GPU) == layer.unproven(GPU) == ""
    assert launches == [GPU]


def test_on_gpus_like_which_they_never_ran_they_are_not(gpu):
    gpu(capability=(7, 5))
    assert layer.unproven(GPU).endswith("capability 8.0 and above, this has 7.5")
    gpu(hip="7.0")
    assert "AMD" in layer.unproven(GPU)


def test_cells_that_no_gpu_has_run_are_run_where_they_are_asked_for(gpu):
    launches = gpu()
    request = Request(LiGRU(), BatchNorm(), GPU, torch.float32)
    assert layer.refuses(request) == ""
    said = "its kernels have not run LiGRU(nonlinearity='relu') on a GPU yet: use_backend('triton')"
    assert layer.unasked(request).startswith(said)
    assert not launches
    assert layer.unasked(request._replace(cell=LSTM())) == ""
    projected = request._replace(cell=LSTM(), projected=True)
    assert layer.refuses(projected) == ""
    assert layer.unasked(projected).startswith("its kernels have not run proj_size on a GPU yet")
    mixed = request._replace(cell=LSTM(), norm=resolve({"input": "batch", "recurrent": "layer"}))
    assert layer.refuses(mixed) == ""
    assert layer.unasked(mixed).startswith("its kernels have not run a spec for each site on a GPU")


def test_states_of_all_steps_are_not_in_a_compiled_graph(gpu):
    gpu()
    request = Request(LSTM(), BatchNorm(), GPU, torch.float32, states=True)
    assert layer.refuses(request) == layer.unasked(request) == ""
    assert "in a compiled graph" in layer.refuses(request._replace(compiled=True))
    assert layer.refuses(request._replace(cell=GRU(), compiled=True)) == ""


def test_nor_in_an_interpreter(gpu, monkeypatch):
    gpu()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "interpreter" in layer.unproven(torch.device("cpu"))


def test_where_triton_fails_it_is_said_once_and_the_next_kernel_runs(gpu):
    launches = gpu(error=RuntimeError("Failed to find C compiler\nand more"))
    with pytest.warns(RuntimeWarning, match=r"cuda:0.*plain PyTorch.*Failed to find C compiler"):
        reason = layer.unproven(GPU)
    assert reason == "Triton does not run here: RuntimeError: Failed to find C compiler"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert layer.unproven(GPU) == reason
        # also where a launch would not be permitted
        gpu(capturing=True)
        assert layer.unproven(GPU) == reason
    assert launches == [GPU]


def test_so_it_is_where_triton_cannot_be_imported(gpu, monkeypatch):
    gpu()
    monkeypatch.setitem(sys.modules, "rnnorm.kernels.triton.probe", None)
    with pytest.warns(RuntimeWarning, match="plain PyTorch"):
        assert "ModuleNotFoundError" in layer.unproven(GPU)


def test_a_gpu_that_is_full_says_nothing_of_triton(gpu):
    gpu(error=torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError):
        layer.unproven(GPU)
    gpu()
    assert layer.unproven(GPU) == ""


def test_while_a_stream_is_captured_nothing_is_launched_to_find_out(gpu):
    launches = gpu(capturing=True)
    assert layer.unproven(GPU) == ""
    assert not launches
