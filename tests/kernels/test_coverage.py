"""What a fused kernel does not list, another kernel computes, and the log says why."""

from dataclasses import dataclass, replace

import pytest
import torch

import rnnorm
from rnnorm.cells.lstm import LSTM
from rnnorm.kernels import dispatch
from rnnorm.kernels.call import Request
from rnnorm.norm import spec
from rnnorm.norm.spec import BatchNorm, LayerNorm, Norm


@dataclass(frozen=True, kw_only=True)
class OwnNorm(Norm):
    input: bool = True
    recurrent: bool = True
    cell: bool = True
    gamma: float = 1.0
    eps: float = 1e-5

    def normalise_rows(self, z, widths, gamma, shift):
        blocks = [
            block * torch.rsqrt(block.square().mean(-1, keepdim=True) + self.eps)
            for block in torch.split(z, widths, -1)
        ]
        scaled = torch.cat(blocks, -1) * gamma
        return scaled if shift is None else scaled + shift


class OwnBatchNorm(BatchNorm):
    pass


@dataclass(frozen=True)
class Coupled(LSTM):
    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        _, f, g, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        c = torch.lerp(torch.tanh(g), c, torch.sigmoid(f))
        h = torch.sigmoid(o) * torch.tanh(normalise("cell", c))
        return h, (h, c)


def a_norm_of_its_own():
    return rnnorm.LSTM(3, 20, norm=OwnNorm())


def a_kind_of_batch_norm():
    return rnnorm.LSTM(3, 20, norm=OwnBatchNorm(), initial_noise=0.0)


def a_cell_of_its_own():
    return rnnorm.Recurrent(Coupled(), 3, 20, norm="layer")


def an_option_of_a_cell():
    layer = rnnorm.LSTM(3, 20, norm="layer")
    cell = LSTM()
    object.__setattr__(cell, "coupled", True)
    layer.cell = cell
    return layer


def an_option_of_a_norm():
    norm = LayerNorm()
    object.__setattr__(norm, "centred", "gate")
    return rnnorm.LSTM(3, 20, norm=norm)


@pytest.fixture
def a_site(monkeypatch):
    """A site after h of the LSTM, added as docs/design.md says."""
    step = LSTM.step

    def normalised(self, weights, x_term, state, normalise, t):
        _, (h, c) = step(self, weights, x_term, state, normalise, t)
        h = normalise("output", h)
        return h, (h, c)

    monkeypatch.setattr(LSTM, "sites", (*LSTM.sites, "output"))
    monkeypatch.setattr(LSTM, "step", normalised)
    monkeypatch.setattr(LSTM, "blocks", lambda self, site, H: [H if site == "output" else 4 * H])
    for kind in (BatchNorm, LayerNorm):
        monkeypatch.setattr(kind, "output", kind.off, raising=False)
    monkeypatch.setattr(spec, "SITES", (*spec.SITES, "output"))

    def layer(kind):
        norm = kind(cell=kind.off)
        object.__setattr__(norm, "output", kind.on)
        return rnnorm.LSTM(3, 20, norm=norm, initial_noise=0.0)

    return layer


def runs_on_the_reference(layer, monkeypatch, caplog, why):
    """Values and gradients are the reference's, by whatever kernel runs unasked."""
    monkeypatch.setattr(dispatch, "_logged", set())
    layer.double()
    x = torch.randn(6, 9, 3, dtype=torch.float64)

    def results():
        output, _ = layer(x)
        return [output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))]

    before = dispatch.calls.copy()
    with caplog.at_level("INFO", "rnnorm"):
        found = results()
    assert dispatch.calls - before == {"reference": 1}
    assert why in caplog.text
    with rnnorm.use_backend("reference"):
        expected = results()
    assert all(map(torch.equal, found, expected))


CASES = {
    a_norm_of_its_own: "it has no OwnNorm",
    a_kind_of_batch_norm: "it has no OwnBatchNorm",
    a_cell_of_its_own: "it has no Coupled",
    an_option_of_a_cell: "it has no LSTM",
    an_option_of_a_norm: "it has no LayerNorm(centred='gate')",
}


@pytest.mark.parametrize("make", CASES)
def test_what_is_not_listed_runs_on_the_reference(make, monkeypatch, caplog):
    layer = make()
    runs_on_the_reference(layer, monkeypatch, caplog, CASES[make])


@pytest.mark.parametrize("kind", [BatchNorm, LayerNorm])
def test_a_new_site_runs_on_the_reference(kind, a_site, monkeypatch, caplog):
    layer = a_site(kind)
    assert layer.gamma_output_l0.shape == (20,)
    runs_on_the_reference(layer, monkeypatch, caplog, "it does not normalise the site 'output'")


FUSED = ("cpu", "triton", "cuda")


@pytest.mark.parametrize("kernel", [k for k in dispatch.KERNELS if k.name in FUSED])
@pytest.mark.parametrize("make", CASES)
def test_every_fused_kernel_refuses_what_it_does_not_list(kernel, make, monkeypatch):
    if kernel.name != "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    layer = make()
    request = Request(layer.cell, layer.norm, torch.device("cpu"), torch.float32)
    listed = Request(LSTM(), LayerNorm(), request.device, request.dtype)
    assert kernel.refuses(listed) == ""
    assert CASES[make] in kernel.refuses(request)
    assert kernel.refuses(listed._replace(masked=("output",))) != ""
    assert kernel.refuses(listed._replace(dtype=torch.complex64)) != ""


def test_torchs_own_operators_refuse_an_option_that_they_do_not_have():
    (aten,) = [kernel for kernel in dispatch.KERNELS if kernel.name == "aten"]
    request = Request(LSTM(), None, torch.device("cpu"), torch.float32)
    assert aten.refuses(request) == ""
    assert aten.refuses(request._replace(cell=an_option_of_a_cell().cell)) != ""
    assert aten.refuses(request._replace(masked=("output",))) != ""


def test_options_that_only_change_numbers_are_listed():
    request = Request(LSTM(), None, torch.device("cpu"), torch.float32)
    for norm in (
        BatchNorm(gamma=1.0, eps=1e-3, momentum=None, population="shared", horizon=3, min_rows=2),
        replace(LayerNorm(), gamma=0.5, eps=1e-3),
    ):
        (cpu,) = [k for k in dispatch.KERNELS if k.name == "cpu"]
        assert cpu.refuses(request._replace(norm=norm)) == ""
