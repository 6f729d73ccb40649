import os
import random
import signal
from pathlib import Path

import pytest

import rnnorm

# tests of cells of one's own are on the reference unless they compile one on purpose
os.environ["RNNORM_COMPILE"] = "0"


def pytest_sessionstart():
    root, other = (Path(file).resolve() for file in (__file__, rnnorm.__file__))
    root, other = root.parents[1], other.parents[2]
    # an editable install stands before PYTHONPATH; an installed wheel is no checkout
    if other != root and (other / "pyproject.toml").exists():
        raise pytest.UsageError(f"these are the tests of {root}, but rnnorm is that of {other}")


@pytest.fixture(autouse=True)
def _heard():
    """Whoever started the tests may have had the signals ignored, as a shell does with ``&``."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_addoption(parser):
    parser.addoption(
        "--one-in", nargs=2, metavar=("N", "SEED"), help="run one in N tests, drawn by the seed"
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption("one_in") is None:
        return
    n, seed = config.getoption("one_in")
    drawn = set(random.Random(seed).sample(range(len(items)), -(-len(items) // int(n))))
    config.hook.pytest_deselected(items=[t for k, t in enumerate(items) if k not in drawn])
    items[:] = [test for k, test in enumerate(items) if k in drawn]
