"""The update of the population's statistics in one launch is that of torch's operators."""

import copy

import emulated
import pytest
import torch
from gpu_or_interpreter import DEVICE, INTERPRETED

import rnnorm
from rnnorm.kernels.cuda import persistent
from rnnorm.kernels.triton import layer as triton
from rnnorm.kernels.triton import update as kernel
from rnnorm.norm.population import Population
from rnnorm.norm.update import update

T, HORIZON = 6, 5


@pytest.fixture
def launches(monkeypatch):
    """The sites of each launch."""
    found, launch = [], kernel.update

    def counted(populations, *rest):
        found.append(list(populations))
        return launch(populations, *rest)

    monkeypatch.setattr(kernel, "update", counted)
    return found


def populations(momentum=0.1, dtype=torch.float32, **options):
    norm = rnnorm.BatchNorm(horizon=HORIZON, momentum=momentum, **options)
    return {
        site: Population(width, norm, shared=False, device=DEVICE, dtype=dtype)
        for site, width in (("input", 9), ("recurrent", 7), ("cell", 3))
    }


def drawn(sites, seed, dtype=torch.float32):
    """A minibatch's moments."""
    generator = torch.Generator().manual_seed(seed)

    def draw(site):
        return torch.randn(T, sites[site].mean.size(1), generator=generator, dtype=dtype)

    return {site: (draw(site).to(DEVICE), draw(site).square().to(DEVICE)) for site in sites}


def assert_as_torchs(sites, minibatches, counts, step=0):
    """Update copies by both, and compare all buffers."""
    others = copy.deepcopy(sites)
    for batch in minibatches:
        triton.update(sites, batch, dict.fromkeys(batch, counts), step)
        update(others, batch, dict.fromkeys(batch, counts), step)
    for site, population in sites.items():
        for name, buffer in population.named_buffers():
            digits = torch.finfo(population.mean.dtype).eps
            torch.testing.assert_close(
                buffer, getattr(others[site], name), rtol=2 * digits, atol=2 * digits
            )
            assert buffer.isfinite().all()


COUNTS = [4, torch.tensor([5, 5, 4, 2, 2, 2]), torch.tensor([5, 4, 2, 0, 0, 0])]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("momentum", [None, 0.1, 0.7, 1.0])
@pytest.mark.parametrize("step", [0, 2])
def test_every_buffer(counts, momentum, step, launches):
    sites = populations(momentum)
    assert_as_torchs(sites, [drawn(sites, seed) for seed in range(3)], counts, step)
    assert launches == 3 * [["input", "recurrent", "cell"]]


def test_in_float64():
    sites = populations(dtype=torch.float64)
    assert_as_torchs(sites, [drawn(sites, seed, torch.float64) for seed in range(12)], 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("momentum", [None, 0.1])
def test_a_step_that_is_not_finite_is_left_out(value, momentum):
    sites = populations(momentum)
    minibatches = [drawn(sites, seed) for seed in range(3)]
    minibatches[1]["recurrent"][1][2, 3] = value
    if momentum is None:
        minibatches[1]["input"][0][0, 8] = value
    assert_as_torchs(sites, minibatches, COUNTS[1])
    assert sites["recurrent"].num_batches_tracked.tolist() == [3, 3, 2, 3, 3]


def test_widths_of_several_blocks(monkeypatch):
    monkeypatch.setattr(kernel, "_BLOCK", 4)
    sites = populations()
    minibatches = [drawn(sites, seed) for seed in range(2)]
    minibatches[1]["input"][1][2, 8] = torch.nan
    assert_as_torchs(sites, minibatches, 3)
    assert sites["input"].rows.tolist() == [6, 6, 3, 6, 6]


def test_steps_past_the_horizon_are_left_out(launches):
    sites = populations()
    assert_as_torchs(sites, [drawn(sites, 0)], 3, step=HORIZON)
    assert all(int(population.rows.sum()) == 0 for population in sites.values())


@pytest.mark.parametrize("lengths", [None, [5, 5, 4, 4, 2, 1]])
def test_a_step_of_training_is_one_launch_and_counts_as_a_change(
    lengths, launches, monkeypatch, tmp_path
):
    if INTERPRETED:
        emulated.on_cpu(monkeypatch, tmp_path)
    monkeypatch.setattr(persistent, "float32_precision", lambda: "ieee")
    torch.manual_seed(0)
    layer = rnnorm.LSTM(3, 4, norm=rnnorm.BatchNorm(input="sequence"), device=DEVICE)
    fresh = copy.deepcopy(layer)
    x = torch.randn(5, 6, 3, device=DEVICE)
    before = layer.population_cell_l0.mean._version
    results = {}
    for backend in ("cuda", "triton", "reference"):
        each = layer if backend == "cuda" else copy.deepcopy(fresh)
        torch.manual_seed(1)
        with rnnorm.use_backend(backend):
            each(x, lengths=lengths)
        results[backend] = dict(each.named_buffers())
    # one row serves all steps of the input site, and only "cuda" takes the launch
    assert launches == [["recurrent", "cell"]]
    for backend in ("cuda", "triton"):
        torch.testing.assert_close(results[backend], results["reference"])
    assert layer.population_cell_l0.mean._version > before


def test_what_observes_operators_sees_torchs(launches):
    from test_triton_look_up import Seen

    sites = populations()
    with Seen() as seen:
        triton.update(sites, drawn(sites, 0), dict.fromkeys(sites, 3), 0)
    assert launches == []
    assert any("lerp" in name for name in seen.names)


@pytest.mark.skipif(not INTERPRETED, reason="counts what the host does")
def test_statistics_that_differ_in_momentum_are_torchs(launches):
    sites = populations() | {"cell": populations(0.5)["cell"]}
    assert_as_torchs(sites, [drawn(sites, 0)], 3)
    assert launches == []
