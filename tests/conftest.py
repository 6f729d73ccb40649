import random
from pathlib import Path

import pytest

import rnnorm


def pytest_sessionstart():
    root, found = Path(__file__).parents[1], Path(rnnorm.__file__)
    # an editable install stands before PYTHONPATH; an installed wheel is what it is
    if "site-packages" not in found.parts and root not in found.parents:
        raise pytest.UsageError(
            f"these are the tests of {root}, but rnnorm is imported from {found}"
        )


def pytest_addoption(parser):
    parser.addoption("--sixth", metavar="SEED", help="run a sixth of the tests, drawn by the seed")


def pytest_collection_modifyitems(config, items):
    seed = config.getoption("sixth")
    if seed is None:
        return
    drawn = set(random.Random(seed).sample(range(len(items)), (len(items) + 5) // 6))
    config.hook.pytest_deselected(items=[t for k, t in enumerate(items) if k not in drawn])
    items[:] = [test for k, test in enumerate(items) if k in drawn]
