"""Steps of a call in one launch, and each in its own: the same as the definition."""

from functools import partial

import at_once
import pytest
import torch
from gpu_or_interpreter import DEVICE
from problems import Problem as OnCpu
from problems import assert_about_as_exact, assert_same

from rnnorm.kernels import reference
from rnnorm.kernels.inputs import Inputs, Options
from rnnorm.kernels.triton import layer as triton
from rnnorm.kernels.triton import plan, tile_sizes

Problem = partial(OnCpu, device=DEVICE)
# two steps with statistics of their own, and two with the last of these
RAGGED = {"shape": (5, 5, 3, 6), "lengths": [5, 5, 4, 2, 2], "min_rows": 4}

CASES = {
    "lstm": {"cell": "LSTM", "norm": "all", **RAGGED},
    "lstm-dense": {"cell": "LSTM", "norm": "joint-cell", "shape": (4, 3, 2, 5)},
    "lstm-ages": {"cell": "LSTM", "norm": "all", **RAGGED, "age": "own", "min_rows": None},
    "lstm-late": {"cell": "LSTM", "norm": "all", **RAGGED, "apart": 3, "min_rows": None},
    "lstm-late-ages": {"cell": "LSTM", "norm": "all", "shape": (6, 3, 2, 5), "age": "own"}
    | {"apart": 4, "min_rows": None},
    "lstm-layer": {"cell": "LSTM", "norm": "layer", **RAGGED},
    "gru": {"cell": "GRU", "norm": "all", **RAGGED, "min_rows": 2},
    "gru-none": {"cell": "GRU", "norm": "none", **RAGGED},
    "gru-layer": {"cell": "GRU", "norm": "layer", **RAGGED},
    "rnn": {"cell": "RNN_TANH", "norm": "all", "shape": (3, 4, 2, 8), "min_rows": 100},
    "relu": {"cell": "RNN_RELU", "norm": "joint", **RAGGED},
    "ligru": {"cell": "LiGRU", "norm": "all", **RAGGED},
    "gru-both-layer": {"cell": "GRU_BOTH", "norm": "layer", **RAGGED},
    "indrnn": {"cell": "IndRNN_RELU", "norm": "all", **RAGGED},
    "indrnn-joint": {"cell": "IndRNN_TANH", "norm": "joint", "shape": (4, 3, 2, 70)},
    "indrnn-none": {"cell": "IndRNN_RELU", "norm": "none", **RAGGED},
    "indrnn-layer": {"cell": "IndRNN_TANH", "norm": "layer", **RAGGED},
}


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("looped", [True, False], ids=["one-launch", "launches"])
@pytest.mark.parametrize("case", CASES)
def test_as_the_reference(case, looped, monkeypatch):
    at_once.loop(monkeypatch, looped)
    problem = Problem(**CASES[case])
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(triton.layer, torch.float64, poison=True), expected, 1e-11)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["lstm", "gru", "lstm-layer"])
def test_one_launch_in_a_half_type_is_about_as_exact_as_the_reference(case, dtype, monkeypatch):
    at_once.loop(monkeypatch, True)
    problem = Problem(**CASES[case] | {"shape": (3, 20, 6, 17), "lengths": None})
    assert_about_as_exact(problem, triton.layer, dtype)


def runs(units, sizes=(4, 4, 4, 4, 4), scope="frame", rows=4, *, back=False):
    """Those of an LSTM's call, of which statistics are taken of three rows or more."""
    x, state = torch.empty(len(sizes), rows, 1, device=DEVICE), torch.empty(rows, units)
    weights = [torch.empty(4 * units, n) for n in (1, units)]
    sizes = torch.tensor(sizes)
    inputs = Inputs(x, sizes, state, state, *weights, *[None] * (len(Inputs._fields) - 6))
    scopes = ",".join([scope] * 3)
    options = Options("LSTM", scopes, False, False, False, True, *[1e-5] * 3, 3, *[1.0] * 4)
    return plan.Plan(inputs, options).runs(back=back)


def test_small_layers_are_a_few_launches(monkeypatch):
    monkeypatch.setattr(tile_sizes, "programs_at_once", lambda device: 132)
    one, each = [(0, 1), (1, 5)], [(t, t + 1) for t in range(5)]
    assert runs(100) == runs(100, back=True) == runs(100, scope="row") == one
    # forward it pays longer
    assert (runs(500), runs(500, back=True)) == (one, each)
    assert runs(600) == runs(200, scope="row") == runs(100, rows=200) == each
    # where there is no graph it pays longer still; statistics are taken of the first three steps
    ragged = (4, 4, 3, 2, 1)
    assert runs(1000, ragged) == runs(1000, ragged, back=True) == [(0, 1), (1, 3), (3, 5)]
    assert runs(200, ragged, "row") == [(0, 1), (1, 3), (3, 5)]
    assert runs(2000, ragged) == runs(300, ragged, "row") == each
    # a smaller GPU has not so many programs at once
    monkeypatch.setattr(tile_sizes, "programs_at_once", lambda device: 108)
    assert runs(1000, ragged) == each
    assert runs(100, (4,)) == [(0, 1)]
