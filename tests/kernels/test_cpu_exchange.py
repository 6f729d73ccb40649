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


def results(meanwhile, dtype):
    problem = Problem("LSTM", "all", (4, 9, 3, 40), lengths=[4] * 9)
    rows = Alone(problem.sizes.unsqueeze(0), None)
    rows.meanwhile = meanwhile
    return problem.results(lambda call: cpu.layer(call._replace(rows=rows)), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("other", ["2 units", "200 units", "product"])
def test_what_runs_within_an_exchange_leaves_its_pass_alone(other, threads, dtype):
    torch.manual_seed(0)
    calls = []
    if other == "product":
        matrix = torch.randn(48, 80, dtype=dtype)

        # torch's products of bfloat16 shape the tiles of AMX, too
        def run():
            return matrix @ matrix.T
    else:
        layer = rnnorm.LSTM(5, int(other.split()[0]), norm="layer", dtype=dtype)
        x = torch.randn(6, 20, 5, dtype=dtype)

        def run():
            with torch.enable_grad():
                layer(x)[0].sum().backward()

    def another():
        run()
        calls.append(1)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = results(nothing, dtype)
        found = results(another, dtype)
    finally:
        torch.set_num_threads(before)
    assert len(calls) > 10
    for name, want in expected.items():
        assert torch.equal(found[name], want), name


@pytest.mark.parametrize("threads", [1, 3])
def test_within_an_exchange_subnormal_numbers_count(threads):
    tiny, found = torch.full((1,), 1e-310, dtype=torch.float64), []
    before = torch.get_num_threads()
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)
    try:
        results(lambda: found.append(tiny * 0.5), torch.float64)
    finally:
        torch.set_num_threads(before)
    assert len(found) > 10
    assert all([torch.equal(each, tiny * 0.5) for each in found])
