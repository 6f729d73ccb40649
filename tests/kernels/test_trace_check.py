"""The check of a trace passes where states become large, and sees equations that are others."""

import pytest
import torch

import rnnorm
from rnnorm import BatchNorm, LayerNorm
from rnnorm.kernels.equations.trace import trace
from rnnorm.kernels.own_cell import cell_of
from rnnorm.kernels.trace_check import difference


class Function(rnnorm.Cell):
    def __init__(self, function):
        object.__setattr__(self, "function", function)

    def step(self, weights, x_term, state, normalise, t):
        h = self.function(self.preactivation(weights, x_term, state[0], normalise))
        return h, (h,)


NORMS = {"none": None, "layer": LayerNorm(), "batch": BatchNorm()}
FUNCTIONS = {
    "square": torch.square,
    "cube": lambda z: z**3,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "maximum": lambda z: torch.maximum(z, z * z),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_large_states_are_no_difference(function, norm):
    cell = Function(FUNCTIONS[function])
    assert difference(cell, cell_of(trace(cell)), NORMS[norm]) == ""


@pytest.mark.parametrize("factor", [1 + 1e-6, torch.tensor(1.0)])
def test_other_equations_are_a_difference(factor):
    traced = cell_of(trace(Function(torch.square)))
    other = Function(lambda z: factor * z * (z if factor != 1 else z.detach()))
    assert "is not what the trace of its step says" in difference(other, traced, None)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    "mode",
    [
        lambda: torch.device("meta"),
        lambda: torch.autograd.set_detect_anomaly(True),
        lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
        lambda: torch.autograd.graph.saved_tensors_hooks(pytest.fail, pytest.fail),
    ],
    ids=["device", "anomaly", "no hooks", "hooks"],
)
def test_a_mode_around_the_first_call_of_a_cell_is_not_around_its_check(mode):
    # its gradient is no number at h = 0
    cell = Function(lambda z: z + torch.sqrt(0 * z))
    with mode():
        assert difference(cell, cell_of(trace(cell)), None) == ""
