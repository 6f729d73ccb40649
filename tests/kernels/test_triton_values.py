"""The Triton kernels against the definition: values, every gradient, moments."""

from functools import partial

import pytest
import torch
from gpu_or_interpreter import DEVICE
from problems import Problem as OnCpu
from problems import assert_about_as_exact, assert_same

from rnnorm.kernels import reference
from rnnorm.kernels.triton import layer as triton

Problem = partial(OnCpu, device=DEVICE)
DENSE = {"shape": (3, 5, 4, 13)}
RAGGED = {"shape": (6, 7, 3, 9), "lengths": [6, 6, 5, 3, 3, 2, 1]}
EVALUATION = {"min_rows": None}

CASES = {
    "lstm": {"cell": "LSTM", "norm": "all", **DENSE},
    "lstm-ragged": {"cell": "LSTM", "norm": "all", **RAGGED},
    "lstm-few-rows": {"cell": "LSTM", "norm": "all", "min_rows": 4, **RAGGED},
    "lstm-no-statistic": {"cell": "LSTM", "norm": "all", "min_rows": 100, **RAGGED},
    "lstm-evaluation": {"cell": "LSTM", "norm": "all", **RAGGED, **EVALUATION},
    "lstm-ages": {"cell": "LSTM", "norm": "all", "age": "own", **RAGGED, **EVALUATION},
    "lstm-late": {"cell": "LSTM", "norm": "all", "apart": 3, **RAGGED, **EVALUATION},
    "lstm-late-ages": {"cell": "LSTM", "norm": "all", "age": "own", "apart": 2, **RAGGED}
    | EVALUATION,
    "lstm-late-training": {"cell": "LSTM", "norm": "all", "apart": 2, "min_rows": 100, **RAGGED},
    "lstm-sequence": {"cell": "LSTM", "norm": "sequence", **RAGGED},
    "lstm-sequence-constant": {"cell": "LSTM", "norm": "sequence", "min_rows": 100, **RAGGED},
    "lstm-sequence-evaluation": {"cell": "LSTM", "norm": "sequence", **DENSE, **EVALUATION},
    "lstm-input": {"cell": "LSTM", "norm": "input", "bias": False, **RAGGED},
    "lstm-cell": {"cell": "LSTM", "norm": "cell", **RAGGED},
    "lstm-joint": {"cell": "LSTM", "norm": "joint", "bias": False, **RAGGED},
    "lstm-joint-cell": {"cell": "LSTM", "norm": "joint-cell", **DENSE},
    "lstm-none": {"cell": "LSTM", "norm": "none", **RAGGED},
    "lstm-one-step": {"cell": "LSTM", "norm": "all", "shape": (1, 2, 1, 1)},
    "lstm-states": {"cell": "LSTM", "norm": "all", "all_states": True, **DENSE},
    "lstm-states-ragged": {"cell": "LSTM", "norm": "layer", "all_states": True, **RAGGED},
    "lstm-states-evaluation": {"cell": "LSTM", "norm": "all", "all_states": True, **RAGGED}
    | EVALUATION,
    "gru-states": {"cell": "GRU", "norm": "all", "all_states": True, **RAGGED},
    "lstm-rows-in-blocks": {"cell": "LSTM", "norm": "all", "shape": (2, 140, 3, 9)},
    "lstm-layer": {"cell": "LSTM", "norm": "layer", **RAGGED},
    "lstm-layer-cell": {"cell": "LSTM", "norm": "layer-cell", **DENSE},
    "lstm-layer-recurrent": {"cell": "LSTM", "norm": "layer-recurrent", **DENSE},
    "lstm-units-in-blocks": {"cell": "LSTM", "norm": "layer", "shape": (2, 3, 2, 600)},
    "gru": {"cell": "GRU", "norm": "all", **RAGGED},
    "gru-sequence": {"cell": "GRU", "norm": "sequence", "bias": False, **DENSE},
    "gru-recurrent": {"cell": "GRU", "norm": "recurrent", "min_rows": 4, **RAGGED},
    "gru-ages": {"cell": "GRU", "norm": "all", "age": "own", **RAGGED, **EVALUATION},
    "gru-late": {"cell": "GRU", "norm": "all", "apart": 1, **DENSE, **EVALUATION},
    "gru-none": {"cell": "GRU", "norm": "none", **RAGGED},
    "gru-layer": {"cell": "GRU", "norm": "layer", **RAGGED},
    "gru-layer-input": {"cell": "GRU", "norm": "layer-input", **DENSE},
    "rnn": {"cell": "RNN_TANH", "norm": "all", **RAGGED},
    "rnn-joint": {"cell": "RNN_TANH", "norm": "joint", **DENSE},
    "relu": {"cell": "RNN_RELU", "norm": "all", **DENSE},
    "relu-joint": {"cell": "RNN_RELU", "norm": "joint", "min_rows": 4, **RAGGED},
    "relu-layer": {"cell": "RNN_RELU", "norm": "layer", "bias": False, **RAGGED},
}
# cells that no kernel in CUDA C++ runs under this backend
MORE = {
    "ligru": {"cell": "LiGRU", "norm": "all", **RAGGED},
    "ligru-joint": {"cell": "LiGRU", "norm": "joint", **DENSE},
    "ligru-layer": {"cell": "LiGRU", "norm": "layer", **RAGGED},
    "gru-both": {"cell": "GRU_BOTH", "norm": "all", **RAGGED, **EVALUATION},
    "gru-both-joint": {"cell": "GRU_BOTH", "norm": "joint", "bias": False, **RAGGED},
    "gru-both-layer": {"cell": "GRU_BOTH", "norm": "layer", **DENSE},
    "mixed": {"cell": "LSTM", "norm": "mixed", **RAGGED},
    "mixed-evaluation": {"cell": "GRU", "norm": "mixed", **RAGGED, **EVALUATION},
    "mixed-input": {"cell": "LSTM", "norm": "mixed-input", "min_rows": 4, **RAGGED},
    "projected": {"cell": "LSTM", "norm": "all", "proj_size": 4, **RAGGED},
    "projected-evaluation": {"cell": "LSTM", "norm": "joint-cell", "proj_size": 4, **DENSE}
    | EVALUATION,
    "projected-states": {"cell": "LSTM", "norm": "all", "proj_size": 4, "all_states": True}
    | RAGGED,
    "projected-none": {"cell": "LSTM", "norm": "none", "proj_size": 1, "bias": False, **RAGGED},
    "projected-layer": {"cell": "LSTM", "norm": "layer", "proj_size": 8, **RAGGED},
    "indrnn": {"cell": "IndRNN_RELU", "norm": "all", **RAGGED},
    "indrnn-few-rows": {"cell": "IndRNN_TANH", "norm": "all", "min_rows": 4, **RAGGED},
    "indrnn-ages": {"cell": "IndRNN_RELU", "norm": "all", "age": "own", **RAGGED, **EVALUATION},
    "indrnn-joint": {"cell": "IndRNN_TANH", "norm": "joint", "bias": False, **DENSE},
    "indrnn-none": {"cell": "IndRNN_RELU", "norm": "none", **RAGGED},
    "indrnn-one-step": {"cell": "IndRNN_RELU", "norm": "all", "shape": (1, 2, 1, 1)},
    "indrnn-rows-in-blocks": {"cell": "IndRNN_TANH", "norm": "all", "shape": (3, 140, 3, 9)},
    "indrnn-layer": {"cell": "IndRNN_RELU", "norm": "layer", **RAGGED},
    "indrnn-units-in-blocks": {"cell": "IndRNN_TANH", "norm": "layer", "shape": (3, 3, 2, 600)},
}


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("case", CASES | MORE)
def test_as_the_reference(case):
    problem = Problem(**(CASES | MORE)[case])
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(triton.layer, torch.float64, poison=True), expected, 1e-11)


NARROW = [
    *((case, torch.float32) for case in ("lstm", "lstm-layer", "gru", "rnn", "lstm-evaluation")),
    ("indrnn-few-rows", torch.float32),
    *((case, torch.bfloat16) for case in ("lstm", "gru", "gru-layer", "ligru", "projected")),
    ("lstm", torch.float16),
]


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize(("case", "dtype"), NARROW)
def test_in_fewer_digits_it_is_about_as_exact_as_the_reference(case, dtype):
    problem = Problem(**(CASES | MORE)[case] | {"shape": (3, 20, 6, 17), "lengths": None})
    found = assert_about_as_exact(problem, triton.layer, dtype)
    assert found["output"].dtype == dtype


def test_eps_and_counts_are_as_wide_as_the_numbers():
    # variances near eps, and a number of rows whose inverse float32 rounds
    problem = Problem(**CASES["lstm"])
    for name in ("x", "weight_hh"):
        problem.leaves[name] = 1e-3 * problem.leaves[name]
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(triton.layer, torch.float64), expected, 1e-11)


@pytest.mark.parametrize("size", [1e4, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "cell", ["LSTM", "GRU", "GRU_BOTH", "LiGRU", "RNN_TANH", "RNN_RELU", "IndRNN_RELU"]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_extreme_values_go_where_the_reference_sends_them(cell, size):
    problem = Problem(cell, "none", (2, 3, 4, 5))
    problem.leaves["x"] *= size
    expected, _ = problem.run(reference.layer, problem.leaves)
    found, _ = problem.run(triton.layer, problem.leaves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("cell", ["RNN_RELU", "LiGRU", "IndRNN_RELU"])
def test_a_rectifier_passes_the_gradient_at_nan_as_the_reference_does(cell):
    problem = Problem(cell, "layer", (3, 4, 5, 20))
    problem.leaves["x"][1, 2, 3] = torch.nan
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(triton.layer, torch.float64)
    for name, want in expected.items():
        torch.testing.assert_close(found[name], want, equal_nan=True, msg=f"{name} differs")
