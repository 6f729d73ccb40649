"""The equations of cells as functions for Triton: every operator, and what Triton asks of them."""

import inspect
import linecache
import os
import subprocess
import sys
import traceback

import pytest
import torch
from gpu_or_interpreter import DEVICE
from torch.nn.functional import softplus
from triton import jit
from triton import language as tl

from rnnorm import Cell
from rnnorm.cells.lstm import LSTM
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.equations.trace import trace
from rnnorm.kernels.triton.generate import equations, functions_of, source
from rnnorm.kernels.triton.tile import Tile

NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.1, 1e-12, 1e-30, -1e-8, 3.5, 20.5, -40.0, 700.0, 800.0]
NUMBERS += [float(each) for each in ("inf", "-inf", "nan")]

OPERATORS = {
    "add": lambda x, y: x + y + 0.1,
    "sub": lambda x, y: 0.1 - (x - y),
    "mul": lambda x, y: x * y * 0.1,
    "div": lambda x, y: x / (y / 0.1),
    "neg": lambda x, y: -x * y,
    "abs": lambda x, y: x.abs() - torch.abs(y),
    "sqrt": lambda x, y: torch.sqrt(x) + y,
    "exp": lambda x, y: torch.exp(x) + y,
    "log": lambda x, y: torch.log(x) + y,
    "log1p": lambda x, y: torch.log1p(x) + y,
    "sigmoid": lambda x, y: torch.sigmoid(x) + y,
    "tanh": lambda x, y: torch.tanh(x) + y,
    "relu": lambda x, y: torch.relu(x) + y,
    "minimum": lambda x, y: torch.minimum(x, y),
    "maximum": lambda x, y: torch.maximum(x, y),
    "clamp": lambda x, y: torch.clamp(x, -0.1, 0.1) + y,
    "lerp": lambda x, y: torch.lerp(torch.tanh(x), torch.sigmoid(y), torch.sigmoid(x)),
    "lt": lambda x, y: torch.where(x < y, x, 0.1),
    "le": lambda x, y: torch.where(x <= 0.1, x, y),
    "gt": lambda x, y: torch.where(x > y, x, y),
    "ge": lambda x, y: torch.where(x >= 0.1, y, x),
    "eq": lambda x, y: torch.where(x == y, -x, y),
    "ne": lambda x, y: torch.where(x != y, x, -y),
    "masks": lambda x, y: torch.where((x < y) & ~(y > 1) | (x > 1), x, y * (x < 0)),
    "softplus": lambda x, y: softplus(x) + y,
}


class Pointwise(Cell):
    """A cell of one operator on its two terms."""

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        term = normalise("recurrent", self.product(normalise("hidden", h), weights.weight_hh))
        h = self.function(x_term, term)
        return h, (h,)


@jit
def _apply(x, y, d, results, E: tl.constexpr, TILE: tl.constexpr):
    cols = tl.arange(0, TILE.units)[None, :]
    terms, gradient = (tl.load(x + cols),), tl.load(d + cols)
    recurrent = (tl.load(y + cols),)
    h = E.advance(terms, recurrent, gradient, TILE)
    d_x, d_y, _ = E.retreat(terms, recurrent, gradient, h, gradient, gradient, gradient, TILE)
    tl.store(results + cols, h)
    tl.store(results + TILE.units + cols, d_x[0])
    tl.store(results + 2 * TILE.units + cols, d_y[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator_is_as_in_torch(name, dtype):
    cell = Pointwise()
    object.__setattr__(cell, "function", OPERATORS[name])
    made = functions_of(f"test_{name}", trace(cell))
    numbers = torch.tensor(NUMBERS, dtype=dtype, device=DEVICE)
    x, y = torch.cartesian_prod(numbers, numbers).unbind(1)
    d = torch.linspace(-1, 2, len(x), dtype=dtype, device=DEVICE)
    results = d.new_empty(3, len(x))
    wide = tl.float64 if dtype == torch.float64 else tl.float32
    how = Tile(1, True, 1, len(x), 1, wide, 0.0)
    _apply[(1,)](
        *(x.contiguous(), y.contiguous(), d, results),
        E=made,
        TILE=how,
    )
    x, y = x.requires_grad_(), y.requires_grad_()
    h = OPERATORS[name](x, y)
    wanted = [h, *torch.autograd.grad(h, (x, y), d, materialize_grads=True)]
    bound = 1e-13 if dtype == torch.float64 else 2e-6
    for got, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=bound, atol=bound / 10, equal_nan=True)


def test_the_source_is_found_as_that_of_a_file():
    function = equations("LSTM").out.fn
    linecache.clearcache()
    assert "tl.sigmoid" in inspect.getsource(function)
    # as Triton's interpreter calls it with too few arguments
    with pytest.raises(TypeError) as raised:
        function()
    assert "generated_LSTM.py" in function.__code__.co_filename
    assert traceback.format_exception(raised.value)


def test_equations_without_room_in_the_kernels_are_refused():
    with pytest.raises(TraceError, match="3 weights by unit, of which the kernel has 0 at most"):
        source(trace(LSTM("all")))


_KEYS = """
from rnnorm.kernels.triton.generate import equations
print(equations("LSTM"), equations("GRU"), equations("RNN_TANH"), equations("RNN_RELU"))
"""


def test_compiled_kernels_are_known_by_all_that_they_call():
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    said = [
        subprocess.run(
            [sys.executable, "-c", text],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for text in (
            _KEYS,
            _KEYS,
            # as if tanh had been written otherwise
            "from rnnorm.kernels.triton import tile\ntile.tanh._src += '\\n    # other'\n" + _KEYS,
        )
    ]
    assert said[0] == said[1]
    first, other = said[0].split(), said[2].split()
    assert len({*first}) == 4
    assert [a == b for a, b in zip(first, other, strict=True)] == [False, False, False, True]
