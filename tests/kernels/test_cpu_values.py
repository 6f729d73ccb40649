"""The CPU kernel against the definition: values, every gradient, moments."""

from functools import lru_cache

import pytest
import torch
from problems import CELLS, DROPOUTS, NORMS, PEEPHOLES, Problem, assert_same, twice

from rnnorm.cells.lstm import LSTM
from rnnorm.kernels import reference
from rnnorm.kernels.call_inputs import options_of
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cpu.c_struct import forward_shapes
from rnnorm.kernels.inputs import Inputs

SHAPES = {
    "one-row-one-step": ((1, 1, 1, 1), None),
    "two-rows": ((3, 2, 1, 5), None),
    "dense": ((6, 9, 40, 20), None),
    "units-16": ((4, 13, 3, 16), None),
    "units-100": ((5, 30, 1, 100), None),
    "units-72": ((3, 7, 70, 72), None),
    "ragged": ((9, 7, 5, 13), [9, 9, 7, 4, 4, 2, 1]),
    "ragged-long": ((40, 20, 6, 36), [40] * 5 + [*range(35, 20, -1)]),
    "chunks": ((12, 130, 33, 24), None),
}
TOLERANCE = {torch.float32: 5e-4, torch.float64: 1e-9}


COVERED = [
    (cell, norm)
    for cell in CELLS
    for norm in NORMS
    if not (cell == "GRU" and norm.startswith("joint"))
    # others have no site of the cell
    if cell == "LSTM" or norm not in ("cell", "joint-cell", "layer-cell")
]
# training, then evaluation where it differs
PASSES = [
    (*case, min_rows)
    for case in COVERED
    for min_rows in (2, None)
    if min_rows or not (case[1] == "none" or case[1].startswith("layer"))
]

# peepholes and recurrent dropout, each alone and together
EXTRA = [
    *((cell, "none") for cell in PEEPHOLES),
    *((cell, dropout) for cell in CELLS for dropout in DROPOUTS if dropout != "none"),
    ("LSTM-output", "zoneout"),
    ("LSTM-all", "every"),
]
# an RNN has no candidate, and no cell to zone out
EXTRA = [case for case in EXTRA if not (case[0].startswith("RNN") and case[1] == "candidate")]
EXTRA = [case for case in EXTRA if case[0].startswith("LSTM") or case[1] != "zoneout"]


# the dtypes of a case follow one another
@lru_cache(maxsize=1)
def _expected(cell, norm, shape, min_rows=2, bias=True, dropout="none"):
    """A problem, and what the reference makes of it in float64."""
    size, lengths = SHAPES[shape]
    problem = Problem(cell, norm, size, lengths, min_rows, bias=bias, dropout=dropout)
    return problem, problem.results(reference.layer, torch.float64)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("cell", "norm", "min_rows"), PASSES)
def test_as_the_reference(cell, norm, shape, dtype, min_rows):
    size, _ = SHAPES[shape]
    by_row = norm.startswith("layer")
    if dtype == torch.float32 and (size[3] == 1 if by_row else min_rows and size[1] == 2):
        pytest.skip("statistics of two numbers amplify rounding without bound")
    problem, expected = _expected(cell, norm, shape, min_rows, bias=shape != "ragged")
    assert_same(problem.results(cpu.layer, dtype, poison=True), expected, TOLERANCE[dtype])


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        *((norm, "ragged") for norm in ("none", "all", "sequence", "joint-cell", "layer")),
        *(("all", shape) for shape in ("dense", "ragged-long", "units-100", "chunks")),
    ],
)
@pytest.mark.parametrize(("cell", "dropout"), EXTRA)
def test_peepholes_and_masks_as_the_reference(cell, dropout, norm, shape, dtype):
    if cell == "GRU" and norm.startswith("joint"):
        norm = "recurrent"
    problem, expected = _expected(cell, norm, shape, dropout=dropout)
    assert_same(problem.results(cpu.layer, dtype, poison=True), expected, TOLERANCE[dtype])


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 4, 19, 21), (3, 2, 40, 72), (5, 6, 3, 50)])
@pytest.mark.parametrize("norm", ["none", "all", "layer"])
@pytest.mark.parametrize(("cell", "dropout"), EXTRA)
def test_peepholes_and_masks_in_evaluation(cell, dropout, norm, size):
    problem = Problem(cell, norm, size, None, None, dropout=dropout)
    expected, _ = problem.run(reference.layer, problem.leaves)
    found, _ = problem.run(cpu.layer, problem.leaves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)
    assert_same(
        problem.results(cpu.layer, torch.float64),
        problem.results(reference.layer, torch.float64),
        1e-9,
    )


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1), (8, 1, 9, 16), (2, 4, 19, 21), (3, 2, 40, 72), (1, 7, 36, 50)]
)
@pytest.mark.parametrize(("cell", "norm"), COVERED)
def test_few_rows_without_gradient(cell, norm, size, dtype):
    problem = Problem(cell, norm, size, None, None)
    leaves = {name: leaf.to(dtype) for name, leaf in problem.leaves.items()}
    expected, _ = problem.run(reference.layer, problem.leaves)
    found, _ = problem.run(cpu.layer, leaves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("lengths", [None, [90, 90, 87]], ids=("dense", "ragged"))
@pytest.mark.parametrize("min_rows", [2, None])
@pytest.mark.parametrize("norm", ["all", "layer"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_few_rows_of_few_inputs_over_many_steps(cell, norm, min_rows, lengths):
    problem = Problem(cell, norm, (90, 3, 4, 17), lengths, min_rows)
    expected, _ = problem.run(reference.layer, problem.leaves)
    found, _ = problem.run(cpu.layer, problem.leaves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(cpu.layer, torch.float64, poison=True), expected, 1e-9)


@pytest.mark.parametrize("min_rows", [4, 100])
@pytest.mark.parametrize("norm", ["all", "sequence", "joint-cell"])
def test_few_rows_take_the_last_good_step_or_the_constants(norm, min_rows):
    problem = Problem("LSTM", norm, (9, 7, 5, 13), SHAPES["ragged"][1], min_rows)
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(cpu.layer, torch.float64), expected, 1e-9)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("lengths", [None, SHAPES["ragged"][1]], ids=("dense", "ragged"))
def test_rows_at_different_ages(cell, lengths):
    problem = Problem(cell, "all", (9, 7, 5, 13), lengths, None, age="own")
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(cpu.layer, torch.float64), expected, 1e-9)


@pytest.mark.parametrize("min_rows", [None, 100])
@pytest.mark.parametrize("age", ["shared", "own"])
@pytest.mark.parametrize("apart", [1, 2, 8])
@pytest.mark.parametrize(("cell", "norm"), [*[(cell, "all") for cell in CELLS], ("LSTM", "joint")])
def test_late_steps_share_the_last_constants(cell, norm, apart, age, min_rows):
    problem = Problem(cell, norm, (9, 7, 5, 13), SHAPES["ragged"][1], min_rows, age, apart)
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(cpu.layer, torch.float64), expected, 1e-9)


def test_in_evaluation_no_term_is_kept_for_a_statistic_of_all_frames():
    arguments, leaves = (LSTM(), NORMS["sequence"]), Problem("LSTM", "none", (50, 2, 4, 18)).leaves
    inputs = Inputs._make([leaves.get(name) for name in Inputs._fields])
    kept = {
        min_rows: forward_shapes(inputs, options_of(*arguments, min_rows), save=False)[10]
        for min_rows in (2, None)
    }
    assert kept == {2: (100, 4 * 20), None: (0,)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cell", CELLS)
def test_long_sums_keep_their_precision(cell, seed):
    problem = Problem(cell, "sequence", (50, 300, 4, 18), seed=seed)
    expected = problem.results(reference.layer, torch.float64)
    assert_same(problem.results(cpu.layer, torch.float32), expected, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(dtype):
    problem = Problem("LSTM", "all", (5, 9, 7, 20))
    for name in problem.leaves:
        problem.leaves[name] = problem.leaves[name].to(dtype).double()
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(cpu.layer, dtype)
    assert found["output"].dtype == dtype
    assert found["mean of input"].dtype == torch.float32
    assert_same(found, expected, 2e-2)


@pytest.mark.parametrize(
    ("cell", "norm", "min_rows", "dropout"),
    [
        *((*case, "none") for case in PASSES),
        *((cell, "all", 2, dropout) for cell, dropout in EXTRA),
    ],
)
def test_gradients_of_gradients_are_those_of_the_reference(cell, norm, min_rows, dropout):
    problem = Problem(cell, norm, (3, 3, 2, 4), [3, 3, 2], min_rows, dropout=dropout)
    torch.testing.assert_close(twice(problem, cpu.layer), twice(problem, reference.layer))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e4, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize("cell", CELLS)
def test_extreme_values_go_where_the_reference_sends_them(cell, dtype, size):
    problem = Problem(cell, "none", (2, 3, 4, 20))
    problem.leaves["x"] *= size
    leaves = {name: leaf.to(dtype) for name, leaf in problem.leaves.items()}
    expected, _ = problem.run(reference.layer, leaves)
    found, _ = problem.run(cpu.layer, leaves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-5)


PROJECTED = {
    "one-unit": ((1, 1, 1, 2), 1, None),
    "dense": ((6, 9, 40, 20), 7, None),
    "few-rows": ((2, 4, 19, 21), 6, None),
    "units-16": ((4, 13, 3, 32), 16, None),
    "wide": ((5, 30, 1, 100), 83, None),
    "ragged": ((9, 7, 5, 13), 6, [9, 9, 7, 4, 4, 2, 1]),
    "chunks": ((12, 130, 33, 40), 21, None),
}


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize("shape", PROJECTED)
@pytest.mark.parametrize("min_rows", [2, None], ids=("training", "evaluation"))
@pytest.mark.parametrize(
    ("cell", "norm", "dropout"),
    [
        ("LSTM", "none", "none"),
        *(("LSTM", norm, "none") for norm in ("all", "sequence", "joint-cell", "layer", "mixed")),
        *(("LSTM", norm, "none") for norm in ("batch-carry", "rms-carry-gate")),
        *(("LSTM", "all", dropout) for dropout in ("candidate", "hidden", "zoneout")),
        ("LSTM-all", "layer", "every"),
        ("LSTM-output", "all", "hidden"),
    ],
)
def test_a_projected_h_as_in_the_reference(cell, norm, dropout, min_rows, shape, dtype):
    size, proj_size, lengths = PROJECTED[shape]
    if dtype == torch.float32 and (size[3] == 2 or norm == "batch-carry"):
        pytest.skip("statistics of few numbers, and a carry by those of few rows, amplify rounding")
    options = {"dropout": dropout, "proj_size": proj_size, "all_states": shape != "wide"}
    resets = 0.2 if min_rows is None or norm in ("none", "layer", "rms-carry-gate") else 0.0
    problem = Problem(cell, norm, size, lengths, min_rows, resets=resets, **options)
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(cpu.layer, dtype, poison=True)
    assert_same(found, expected, TOLERANCE[dtype])
    with torch.no_grad():
        values, _ = problem.run(cpu.layer, problem.leaves)
    for got, name in zip(values, ("output", "h_n", "c_n"), strict=False):
        torch.testing.assert_close(got, expected[name])


@pytest.mark.parametrize("norm", ["none", "all", "layer"])
def test_gradients_of_gradients_of_a_projected_h(norm):
    problem = Problem("LSTM", norm, (3, 3, 2, 4), [3, 3, 2], proj_size=3, all_states=True)
    torch.testing.assert_close(twice(problem, cpu.layer), twice(problem, reference.layer))


@pytest.mark.parametrize("size", [1e4, float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["x", "h0", "weight_hr"])
def test_extreme_values_of_a_projected_layer(where, size):
    # the last tile has 4 units, or 8 of which three do not exist, with weights of 0
    problem = Problem("LSTM", "none", (3, 3, 4, 21), min_rows=None, proj_size=5)
    problem.leaves[where].view(-1, problem.leaves[where].size(-1))[1, 2] = size
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(cpu.layer, torch.float64)
    for name, want in expected.items():
        torch.testing.assert_close(found[name], want, equal_nan=True, msg=f"{name} differs")


# the relu of an infinite sum is infinite itself
@pytest.mark.parametrize("norm", ["none", "all"])
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "RNN_RELU"])
@pytest.mark.parametrize("units", [20, 21])
@pytest.mark.parametrize("where", ["x", "h0"])
def test_an_infinite_input_makes_the_same_gradients_nan_as_in_the_reference(
    cell, norm, where, units
):
    if (cell, where) == ("GRU", "h0"):
        pytest.skip("torch.lerp makes NaN of an infinite state that z passes on")
    # the last tile has 4 units, or 8 of which three do not exist, with weights of 0
    problem = Problem(cell, norm, (2, 3, 4, units), min_rows=None)
    problem.leaves[where].view(-1, 3, problem.leaves[where].size(-1))[0, 1, 2] = -torch.inf
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(cpu.layer, torch.float64)
    assert expected["d weight_hh"].isfinite().any()
    for name, want in expected.items():
        torch.testing.assert_close(found[name], want, equal_nan=True, msg=f"{name} differs")


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_a_rectifier_passes_the_gradient_at_nan_as_the_reference_does(norm):
    problem = Problem("RNN_RELU", norm, (3, 4, 5, 20))
    problem.leaves["x"][1, 2, 3] = torch.nan
    expected = problem.results(reference.layer, torch.float64)
    found = problem.results(cpu.layer, torch.float64)
    assert expected["output"].isnan().any()
    for name, want in expected.items():
        torch.testing.assert_close(found[name], want, equal_nan=True, msg=f"{name} differs")
