import pytest
import torch

from rnnorm.experiments.commands.cli import main
from rnnorm.experiments.comparing import compare
from rnnorm.experiments.searching import search
from rnnorm.experiments.training import fit


def flushes() -> bool:
    return bool(torch.full((), 1e-40) * 1 == 0)


@pytest.fixture
def seen(monkeypatch):
    """Whether they were zeros in each training that began."""
    found = []

    def begin(*_, **__):
        found.append(flushes())
        raise ValueError("seen")

    for module, name in ((fit, "fit"), (compare, "compare"), (search, "search")):
        monkeypatch.setattr(module, name, begin)
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor has no mode in which they are zeros")
    yield found
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "demo/digits-lstm"],
        ["demo"],
        ["compare", "demo/digits-lstm", "demo/digits-bn"],
        ["search", "demo/digits-lstm", "--out=out"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_trains_takes_them_for_zeros(command, seen):
    assert not flushes()
    assert main(command) == 1
    assert seen == [True]


def test_a_worker_of_a_search_takes_them_for_zeros(seen):
    with pytest.raises(SystemExit):
        search._work("demo/digits-lstm", "out", 1, torch.get_num_threads(), trust=False)
    assert seen == [True]
