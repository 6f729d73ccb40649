"""While a pass waits for what an exchange brings, its thread may be asked for another."""

import pytest
import torch
from problems import Problem

import rnnorm
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.norm.merged_moments import ActiveRows


def nothing():
    pass


class Alone(ActiveRows):
    """One process, which does something in each exchange."""

    meanwhile = staticmethod(nothing)

    def _gather(self, own):
        self.meanwhile()
        return own.unsqueeze(0)


def results(meanwhile):
    problem = Problem("LSTM", "all", (4, 9, 3, 40), lengths=[4] * 9)
    rows = Alone(problem.sizes.unsqueeze(0), None)
    rows.meanwhile = meanwhile
    return problem.results(lambda call: cpu.layer(call._replace(rows=rows)), torch.float64)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("units", [2, 200])
def test_a_pass_within_an_exchange_has_memory_of_its_own(units, threads):
    torch.manual_seed(0)
    layer, x = rnnorm.LSTM(5, units, norm="layer"), torch.randn(6, 20, 5)
    calls = []

    def another():
        with torch.enable_grad():
            layer(x)[0].sum().backward()
        calls.append(1)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = results(nothing)
        found = results(another)
    finally:
        torch.set_num_threads(before)
    assert len(calls) > 10
    for name, want in expected.items():
        assert torch.equal(found[name], want), name
