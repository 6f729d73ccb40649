"""The look-up of the population's statistics in one launch is that of ``Population``."""

import copy
import io
from collections import Counter

import pytest
import torch
from gpu_or_interpreter import DEVICE, INTERPRETED
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

import rnnorm
from rnnorm.kernels.triton import layer as triton
from rnnorm.kernels.triton import look_up as kernel
from rnnorm.norm import population as populations
from rnnorm.norm.population import Population

COUNTS = [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 3, 0, 1], [2, 0, 0, 0, 0], [0, 0, 0, 0, 7]]


class Seen(TorchDispatchMode):
    """Notes the names of operators."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator).split(".")[1])
        return operator(*args, **(kwargs or {}))


def drawn(counts, width, dtype=torch.float32):
    """A population whose rows all differ."""
    norm = rnnorm.BatchNorm(horizon=len(counts))
    made = Population(width, norm, shared=False, device=DEVICE, dtype=dtype)
    made.mean.normal_()
    made.var.uniform_()
    made.num_batches_tracked.copy_(torch.tensor(counts))
    return made


@pytest.fixture
def launches(monkeypatch):
    """The sites of each launch."""
    found, launch = [], kernel.look_up

    def counted(populations, first, steps):
        found.append(list(populations))
        return launch(populations, first, steps)

    monkeypatch.setattr(kernel, "look_up", counted)
    return found


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(
    "first", [0, 3, 2**62, torch.tensor([4, 0, 7]), torch.arange(9)[::3]], ids=str
)
def test_each_step_has_the_row_that_serves_it(counts, first, launches):
    sites = {"input": drawn(counts, 9, torch.float64), "recurrent": drawn([1, *counts, 0], 9)}
    sites["cell"] = drawn(counts[:3], 3)
    found = triton.look_up(sites, first, 6)
    assert launches == [["input", "recurrent", "cell"]]
    for site, population in sites.items():
        steps = torch.arange(6, device=DEVICE).unsqueeze(1)
        expected = population.at(steps + torch.as_tensor(first, device=DEVICE))
        for got, want in zip(found[site], expected, strict=True):
            assert got.is_contiguous()
            # the last row serves all later steps
            assert torch.equal(got[torch.arange(6).clamp(max=len(got) - 1)], want)


def test_rows_and_widths_of_several_blocks(monkeypatch):
    monkeypatch.setattr(kernel, "_BLOCK", 4)
    counts = [0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]
    site = drawn(counts, 11)
    ((mean, var),) = kernel.look_up({"cell": site}, 0, 12).values()
    wanted = site.at(torch.arange(12, device=DEVICE))
    assert torch.equal(mean[:, 0], wanted[0])
    assert torch.equal(var[:, 0], wanted[1])


def evaluated(layer, x, **given):
    with torch.no_grad():
        return layer(x, **given)[0]


def trained(norm="batch", **options):
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm=norm, initial_noise=0, device=DEVICE, **options)
    layer(torch.randn(5, 6, 3, device=DEVICE))
    return layer.eval()


def test_evaluation_is_one_launch_a_layer(launches):
    layer, x = trained(), torch.randn(7, 6, 3, device=DEVICE)
    with rnnorm.use_backend("reference"):
        expected = evaluated(layer, x)
    assert launches == []
    with rnnorm.use_backend("triton"):
        torch.testing.assert_close(evaluated(layer, x), expected)
        assert launches == [["input", "recurrent", "cell"]]
        layer(x)[0].sum().backward()
        assert len(launches) == 2
        # one row serves all steps of the input site
        mixed = trained(rnnorm.BatchNorm(input="sequence"))
        evaluated(mixed, x)
        assert launches[2:] == [["recurrent", "cell"]]


def test_frozen_layers_look_nothing_up(launches):
    frozen = rnnorm.freeze(trained())
    with rnnorm.use_backend("triton"):
        evaluated(frozen, torch.randn(7, 6, 3, device=DEVICE))
    assert launches == []
    sites = {site: getattr(frozen, f"population_{site}_l0") for site in ("input", "cell")}
    with Seen() as seen, torch.no_grad():
        triton.look_up(sites, 0, 7)
    # views
    assert set(seen.names) <= {"slice", "unsqueeze"}


def replaced(layer):
    """A checkpoint of other statistics."""
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    state["population_cell_l0.mean"] += 1
    state["population_cell_l0.num_batches_tracked"][2:] = 0
    return state


CHANGES = {
    "in place": lambda p, layer: p.mean.add_(1),
    "data": lambda p, layer: p.mean.data.add_(1),
    "counts by data": lambda p, layer: p.num_batches_tracked.data[2:].zero_(),
    "other data": lambda p, layer: setattr(p.var, "data", 2 * p.var),
    "assigned": lambda p, layer: setattr(p, "mean", p.mean + 1),
    "load_state_dict": lambda p, layer: layer.load_state_dict(replaced(layer)),
    "load_state_dict(assign=True)": lambda p, layer: layer.load_state_dict(
        replaced(layer), assign=True
    ),
    "to": lambda p, layer: layer.double(),
    "training": lambda p, layer: layer.train()(torch.randn(9, 6, 3, device=DEVICE).to(p.mean)),
    "reset": lambda p, layer: layer.reset_running_stats(),
}


@pytest.mark.filterwarnings("ignore:evaluation before any statistic")
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_buffer_is_seen(change, launches):
    layer = trained()
    with rnnorm.use_backend("triton"):
        evaluated(layer, torch.randn(7, 6, 3, device=DEVICE))
    with torch.no_grad():
        CHANGES[change](layer.population_cell_l0, layer)
    layer.eval()
    x = torch.randn(7, 6, 3, device=DEVICE).to(layer.weight_hh_l0)
    with rnnorm.use_backend("reference"):
        expected = evaluated(layer, x)
    before = len(launches)
    with rnnorm.use_backend("triton"):
        torch.testing.assert_close(evaluated(layer, x), expected)
    assert len(launches) == before + 1


def test_copies_pickles_and_inference_tensors(launches):
    layer, x = trained(), torch.randn(7, 6, 3, device=DEVICE)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    with rnnorm.use_backend("triton"):
        expected = evaluated(layer, x)
        for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
            assert torch.equal(evaluated(other, x), expected)
        with torch.inference_mode():
            torch.testing.assert_close(trained()(x)[0], expected)
    assert len(launches) == 4


def test_what_observes_operators_sees_torchs(launches):
    sites = {"cell": drawn(COUNTS[2], 3)}
    expected = triton.look_up(sites, 0, 4)
    with Seen() as seen:
        found = triton.look_up(sites, 0, 4)
    assert seen.names.count("cummax") == 1
    assert len(launches) == 1
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_statistics_that_are_differentiated_are_torchs(launches):
    sites = {"cell": drawn(COUNTS[2], 3)}
    sites["cell"].mean.requires_grad_()
    triton.look_up(sites, 0, 4)["cell"][0].sum().backward()
    # the third row serves three steps
    assert sites["cell"].mean.grad[:, 0].tolist() == [0, 0, 4, 0, 0]
    assert launches == []


def test_operators_of_a_look_up(monkeypatch):
    launched = []
    monkeypatch.setattr(GridExecutor, "__call__", lambda *given, **options: launched.append(1))
    monkeypatch.setattr(triton, "unobserved", lambda tensors: True)
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: torch.no_grad())
    sites = {site: drawn(COUNTS[2], 8) for site in ("input", "recurrent", "cell")}
    with Seen() as seen:
        triton.look_up(sites, 0, 5)
    assert Counter(seen.names) == {"new_empty": 3, "select": 6}
    assert launched == [1] * INTERPRETED
    with Seen() as seen:
        populations.look_up(sites, 0, 5)
    assert len(seen.names) == 51
