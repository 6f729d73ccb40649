import random


def pytest_addoption(parser):
    parser.addoption("--sixth", metavar="SEED", help="run a sixth of the tests, drawn by the seed")


def pytest_collection_modifyitems(config, items):
    seed = config.getoption("sixth")
    if seed is None:
        return
    drawn = set(random.Random(seed).sample(range(len(items)), (len(items) + 5) // 6))
    config.hook.pytest_deselected(items=[t for k, t in enumerate(items) if k not in drawn])
    items[:] = [test for k, test in enumerate(items) if k in drawn]
