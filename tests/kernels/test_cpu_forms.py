"""The CPU kernel against the definition where other fused kernels do not follow it."""

from functools import lru_cache

import pytest
import torch
from problems import DROPOUTS, MORE_CELLS, MORE_NORMS, PEEPHOLES, Problem, assert_same, twice

from rnnorm.kernels import reference
from rnnorm.kernels.cpu import layer as cpu

SHAPES = {
    "one-row-one-step": ((1, 1, 1, 1), None),
    "dense": ((6, 9, 40, 20), None),
    "units-72": ((3, 7, 7, 72), None),
    "ragged": ((9, 7, 5, 13), [9, 9, 7, 4, 4, 2, 1]),
    "chunks": ((12, 130, 33, 24), None),
}
TOLERANCE = {torch.float32: 5e-4, torch.float64: 1e-9}


def _fits(cell, norm):
    joint, carry = "joint" in norm, "carry" in norm
    return not (joint and cell == "GRU") and (cell.startswith("LSTM") or not carry)


FORMS = [
    *((cell, norm) for cell in ("LSTM", "GRU", "RNN_TANH") for norm in MORE_NORMS),
    *(
        (cell, norm)
        for cell in MORE_CELLS
        for norm in ("none", "all", "sequence", "layer", "layer-recurrent", *MORE_NORMS)
    ),
    *((cell, norm) for cell in MORE_CELLS for norm in ("joint",)),
]
FORMS = [form for form in FORMS if _fits(*form)]


# the dtypes of a case follow one another
@lru_cache(maxsize=1)
def _expected(cell, norm, shape, **options):
    problem = Problem(cell, norm, *SHAPES[shape], **options)
    return problem, problem.results(reference.layer, torch.float64)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("cell", "norm"), FORMS)
def test_forms_as_the_reference(cell, norm, shape, dtype):
    if dtype == torch.float32 and shape == "one-row-one-step":
        pytest.skip("statistics of two numbers amplify rounding without bound")
    problem, expected = _expected(cell, norm, shape, bias=shape != "ragged")
    assert_same(problem.results(cpu.layer, dtype, poison=True), expected, TOLERANCE[dtype])


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("shape", ["dense", "ragged"])
@pytest.mark.parametrize("dropout", [name for name in DROPOUTS if name != "none"])
@pytest.mark.parametrize(
    ("cell", "norm"),
    [
        ("LSTM", "layer-carry"),
        ("LSTM", "batch-carry"),
        *((cell, norm) for cell in MORE_CELLS for norm in ("all", "layer-joint")),
    ],
)
def test_masks_as_the_reference(cell, norm, dropout, shape):
    problem, expected = _expected(cell, norm, shape, dropout=dropout)
    assert_same(problem.results(cpu.layer, torch.float64, poison=True), expected, 1e-9)


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (8, 1, 9, 16), (2, 4, 19, 21), (1, 7, 36, 50)])
@pytest.mark.parametrize(("cell", "norm"), FORMS)
def test_few_rows_without_gradient(cell, norm, size):
    problem = Problem(cell, norm, size, None, None)
    expected, _ = problem.run(reference.layer, problem.leaves)
    found, _ = problem.run(cpu.layer, problem.leaves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("resets", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    ("cell", "norm", "dropout"),
    [
        *((cell, "none", "none") for cell in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU", *MORE_CELLS)),
        *((cell, "layer", "none") for cell in ("LSTM", "GRU", "RNN_TANH", *MORE_CELLS)),
        *((cell, "none", "every") for cell in ("LSTM", "GRU", "RNN_TANH", *MORE_CELLS)),
        *((cell, "layer", "zoneout") for cell in PEEPHOLES),
        ("LSTM", "rms-carry-gate", "every"),
        ("LSTM", "layer-joint", "hidden"),
    ],
)
def test_resets_as_the_reference(cell, norm, dropout, resets, shape, dtype):
    if dtype == torch.float32 and shape == "one-row-one-step" and norm != "none":
        pytest.skip("statistics of two numbers amplify rounding without bound")
    problem, expected = _expected(cell, norm, shape, dropout=dropout, resets=resets)
    assert_same(problem.results(cpu.layer, dtype, poison=True), expected, TOLERANCE[dtype])


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", ["all", "sequence", "batch-carry", "mixed", "joint"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", *MORE_CELLS])
def test_resets_with_the_statistics_of_a_population(cell, norm, shape):
    if not _fits(cell, norm):
        pytest.skip("the cell has no such site")
    problem, expected = _expected(cell, norm, shape, min_rows=None, apart=1, resets=0.3)
    assert_same(problem.results(cpu.layer, torch.float64, poison=True), expected, 1e-9)


@pytest.mark.parametrize("size", [(8, 1, 9, 16), (2, 4, 19, 21), (5, 6, 3, 50)])
@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN_RELU", *MORE_CELLS, *PEEPHOLES])
def test_resets_without_gradient(cell, norm, size):
    problem = Problem(cell, norm, size, None, None, resets=0.3)
    expected, _ = problem.run(reference.layer, problem.leaves)
    found, _ = problem.run(cpu.layer, problem.leaves)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN_RELU", *MORE_CELLS])
def test_nothing_of_the_rows_before_a_reset_is_read_after_it(cell, norm):
    problem = Problem(cell, norm, (6, 5, 4, 20), resets=0.5)
    problem.reset[3] = True
    clean = problem.results(cpu.layer, torch.float64)
    spoiled = problem.leaves["x"].detach().clone()
    spoiled[1] = torch.nan
    problem.leaves["x"] = spoiled
    found = problem.results(cpu.layer, torch.float64)
    assert found["output"][1].isnan().any()
    torch.testing.assert_close(found["output"][3:], clean["output"][3:], rtol=0, atol=0)
    torch.testing.assert_close(found["d x"][3:], clean["d x"][3:], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("cell", "norm", "resets"),
    [*((*form, 0.0) for form in FORMS), ("LSTM", "layer", 0.4), ("GRU", "none", 0.4)],
)
def test_gradients_of_gradients_are_those_of_the_reference(cell, norm, resets):
    problem = Problem(cell, norm, (3, 3, 2, 4), [3, 3, 2], resets=resets)
    torch.testing.assert_close(twice(problem, cpu.layer), twice(problem, reference.layer))


@pytest.mark.usefixtures("fresh_memory_is_nan")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=("float32", "float64"))
@pytest.mark.parametrize("shape", ["dense", "ragged", "chunks"])
@pytest.mark.parametrize(
    ("norm", "dropout", "resets"),
    [("none", "none", 0.2), ("all", "every", 0.0), ("rms-carry-gate", "zoneout", 0.2)],
)
def test_c_after_every_step_as_the_reference(norm, dropout, resets, shape, dtype):
    options = {"dropout": dropout, "resets": resets, "all_states": True}
    problem, expected = _expected("LSTM", norm, shape, **options)
    assert "all_c" in expected
    assert_same(problem.results(cpu.layer, dtype, poison=True), expected, TOLERANCE[dtype])
