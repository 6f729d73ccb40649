"""A layer with a norm in half types and under autocast."""

import copy

import pytest
import torch

import rnnorm

# torch.nn's calls know no step
pytestmark = pytest.mark.filterwarnings("ignore:hx was given without step")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by", ["conversion", "constructor"])
def test_moments_stay_float32_in_half_types(plain, norm, dtype, by):
    if by == "conversion":
        layer = plain.rnnorm(norm=norm, dtype=torch.float32).to(dtype)
    else:
        layer = plain.rnnorm(norm=norm, dtype=dtype)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    x = plain.input(rows=16).to(dtype)
    for training in (True, False):
        output, state = layer.train(training)(x)
        assert output.dtype == dtype
        assert {part.dtype for part in (state if type(state) is tuple else (state,))} == {dtype}
        assert output.isfinite().all()
    output.float().pow(2).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert {b.dtype for b in layer.buffers()} <= {torch.float32, torch.int64}


def test_half_and_bfloat16_methods_keep_the_moments(trained):
    for method in ("half", "bfloat16"):
        kinds = {b.dtype for b in getattr(copy.deepcopy(trained).float(), method)().buffers()}
        assert kinds <= {torch.float32, torch.int64}


def test_half_types_are_near_float64(plain, norm):
    exact = plain.rnnorm(norm=norm)
    half = plain.rnnorm(norm=norm)
    half.load_state_dict(exact.state_dict())
    half.bfloat16()
    x = plain.input(rows=16)
    for training in (True, False):
        expected = exact.train(training)(x)[0]
        error = half.train(training)(x.bfloat16())[0].double() - expected
        assert error.pow(2).mean().sqrt() < 0.03 * expected.pow(2).mean().sqrt()


def test_counts_stay_integers_in_every_type(plain):
    layer = plain.rnnorm(norm="batch").float().double().half().float()
    layer(plain.input().float())
    counts = [
        b for name, b in layer.named_buffers() if name.endswith(("rows", "num_batches_tracked"))
    ]
    assert counts
    assert all(count.dtype == torch.int64 and count.min() > 0 for count in counts)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["dense", "state", "packed"])
def test_autocast_gives_torchs_dtypes(plain, norm, training, weights, form, torch_dtypes, tensors):
    layer, theirs = plain.rnnorm(norm=norm, dtype=weights), plain.torch(dtype=weights)
    state = plain.state()
    cast = tuple(p.to(weights) for p in state) if type(state) is tuple else state.to(weights)
    arguments = {
        "dense": (plain.input().to(weights),),
        "state": (plain.input().to(weights), cast),
        "packed": (plain.packed().to(weights),),
    }[form]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(plain.input(rows=8).to(weights))
        expected, _ = torch_dtypes(theirs.train(training), *arguments)
        result = layer.train(training)(*arguments)
        assert [part.dtype for part in tensors(result)] == expected
    sum(part.float().pow(2).sum() for part in tensors(result)).backward()
    assert {parameter.grad.dtype for parameter in layer.parameters()} == {weights}
    assert {b.dtype for b in layer.buffers()} <= {torch.float32, torch.float64, torch.int64}


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_autocast_leaves_float64_as_exact_as_it_is(plain, norm, kernel, close):
    if unavailable := rnnorm.backends()[kernel]:
        pytest.skip(unavailable)
    layer, x = plain.rnnorm(norm=norm), plain.input(rows=8)
    with rnnorm.use_backend(kernel):
        expected = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            close(layer(x), expected)


def test_autocast_is_near_float32(plain, norm):
    layer = plain.rnnorm(norm=norm, dtype=torch.float32)
    twin = copy.deepcopy(layer)
    x = plain.input(rows=16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x)[0]
    expected = twin(x)[0]
    assert (found - expected).pow(2).mean().sqrt() < 0.03 * expected.pow(2).mean().sqrt()
