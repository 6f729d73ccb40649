"""The C++ of cells' equations, and the functions that it calls."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rnnorm.cells.cell import Cell
from rnnorm.cells.gru import GRU
from rnnorm.cells.lstm import LSTM
from rnnorm.kernels.cpu.generate import header, headers
from rnnorm.kernels.cpu.statements import number
from rnnorm.kernels.equations.opaque import TraceError
from rnnorm.kernels.equations.trace import trace

CSRC = Path(__file__).parents[2] / "csrc"
GENERATE = CSRC / "generate.py"


def test_the_equations_are_written_without_torch(tmp_path):
    header = tmp_path / "cells.h"
    code = "import sys; sys.modules['torch'] = None"
    run = f"{code}; import runpy; sys.argv = [{str(GENERATE)!r}, {str(header)!r}]; "
    run += f"runpy.run_path({str(GENERATE)!r}, run_name='__main__')"
    subprocess.run([sys.executable, "-S", "-c", run], check=True)
    cells = {"Lstm": LSTM("all"), "Gru": GRU()}
    wanted = headers({name: trace(cell) for name, cell in cells.items()}, ["Lstm"])
    structs = wanted.split("namespace {\n\n")[1].split("\n}  // namespace\n")[0]
    assert header.read_text().startswith(wanted.split("struct")[0])
    assert structs in header.read_text()


_CODE = """
#include <cstdio>
#include <initializer_list>
#include "functions.h"
using namespace rnnorm;
template <class T> void apply(int64_t n) {
  T x[4], y[4];
  while (std::fread(x, sizeof(T), 4, stdin) == 4 && n--) {
    const auto v = load<4>(x);
    for (const auto& value : {power_of_e<4, T>(v), logarithm<4, T>(v), logarithm_of_more<4, T>(v),
                              square_root<4, T>(v), magnitude<4, T>(v)}) {
      store<4>(y, value);
      std::fwrite(y, sizeof(T), 4, stdout);
    }
  }
}
int main(int count, char**) { count > 1 ? apply<double>(1 << 20) : apply<float>(1 << 20); }
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
def test_functions_of_vectors_are_exact_to_a_few_units(tmp_path):
    (tmp_path / "functions.cpp").write_text(_CODE)
    program = tmp_path / "functions"
    flags = ["-std=gnu++17", "-O1", "-ffp-contract=fast", "-Wno-psabi", f"-I{CSRC}"]
    subprocess.run(["c++", *flags, tmp_path / "functions.cpp", "-o", program], check=True)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, -2.0, 1e-30, 1e-320, 87.5, 88.5]
    special += [-87.5, 89.0, -100.0, -103.0, 709.5, 710.0, -709.0, -740.0, 1e-45, 0.7071, 1.4142]
    drawn = np.random.default_rng(0).normal(size=2000) * 10.0 ** np.linspace(-20, 3, 2000)
    for dtype, option in ((np.float32, []), (np.float64, ["double"])):
        with np.errstate(all="ignore"):
            x = np.concatenate([special, drawn])[: 2020 // 4 * 4].astype(dtype)
            wide = x.astype(np.longdouble)
            wanted = [np.exp(wide), np.log(wide), np.log1p(wide), np.sqrt(wide), np.abs(wide)]
        output = subprocess.run([program, *option], input=x.tobytes(), capture_output=True).stdout
        got = np.frombuffer(output, dtype).reshape(-1, 5, 4).transpose(1, 0, 2).reshape(5, -1)
        assert got.shape == (5, len(x))
        names = ("exp", "log", "log1p", "sqrt", "abs")
        for name, values, exact in zip(names, got, wanted, strict=True):
            with np.errstate(all="ignore"):
                rounded = exact.astype(dtype)
                units = np.abs(values - exact) / np.spacing(np.abs(rounded))
            right = (values == rounded) | (np.isnan(values) & np.isnan(rounded)) | (units <= 4)
            assert right.all(), (name, dtype, x[~right], values[~right], rounded[~right])


class Crossing(Cell):
    """A cell whose h reads five values of before its cell site."""

    gates = (6,)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        """Compute a step."""
        c, *others = self.preactivation(weights, x_term, state[0], normalise).chunk(6, 1)
        h = normalise("cell", c)
        for other in others:
            h = h * other
        return h, (h, c)


def test_more_values_than_are_kept_for_after_the_cell_site_are_refused():
    with pytest.raises(TraceError, match="5 values are read after its cell site"):
        header(trace(Crossing()))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 1e300, math.inf, -math.inf, math.nan])
def test_a_number_keeps_its_value_and_sign(value):
    text = number(value).removeprefix("T(").removesuffix(")")
    named = {"__builtin_inf()": "inf", "-__builtin_inf()": "-inf", '__builtin_nan("")': "nan"}
    # as C++ reads it, where a number without a point is a whole one
    read = (
        float(named.get(text, text)) if text in named or "." in text or "e" in text else int(text)
    )
    assert math.copysign(1, read) == math.copysign(1, value)
    assert read == value or math.isnan(value)


def test_equations_without_room_in_the_frame_are_refused():
    graph = trace(LSTM())
    # tanh of another value than the second state
    nodes = [n._replace(inputs=(5,)) if n.name == "cell" else n for n in graph.nodes]
    with pytest.raises(TraceError, match="does not normalise its second state"):
        header(graph._replace(nodes=tuple(nodes)))
