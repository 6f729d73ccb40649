"""Sizes that are 0."""

import pytest
import torch

import rnnorm

NORMS = [None, "batch", "layer", rnnorm.BatchNorm(input="sequence")]
IDS = ["none", "batch", "layer", "sequence"]


@pytest.mark.parametrize("norm", NORMS, ids=IDS)
@pytest.mark.parametrize("lengths", [None, []], ids=["dense", "lengths"])
def test_an_empty_batch_gives_torchs_empty_output(deep, norm, lengths, identical, tensors):
    ours, theirs = deep.rnnorm(norm=norm), deep.torch()
    if norm is not None:
        ours(deep.input())
    x, twin = (deep.input()[:, :0].clone().requires_grad_() for _ in range(2))
    results = ours.eval()(x, lengths=lengths), theirs.eval()(twin)
    identical(*results)
    for result in results:
        sum(part.sum() for part in tensors(result)).backward()
    assert x.grad.shape == twin.grad.shape
    assert all(p.grad is None or not p.grad.any() for p in ours.parameters())


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("sizes", [(0, 3, 4), (5, 0, 4), (5, 3, 0), (0, 0, 0)], ids=str)
@pytest.mark.filterwarnings("ignore:evaluation before any statistic")
def test_a_cell_of_any_empty_size_gives_torchs_shapes(cell_name, sizes, backend):
    rows, inputs, hidden = sizes
    cell = getattr(rnnorm, cell_name)(inputs, hidden, norm="batch")
    x = torch.randn(rows, inputs, requires_grad=True)

    def shapes(result):
        return [part.shape for part in (result if isinstance(result, tuple) else (result,))]

    expected = shapes(getattr(torch.nn, cell_name)(inputs, hidden)(x))
    if why_not := rnnorm.backends()[backend]:
        pytest.skip(why_not)
    with rnnorm.use_backend(backend):
        # a statistic needs rows
        assert not rows or shapes(cell(x)) == expected
        result = cell.eval()(x)
    assert shapes(result) == expected
    sum(part.sum() for part in (result if isinstance(result, tuple) else (result,))).backward()
    assert hidden or not x.grad.any()
