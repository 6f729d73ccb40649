import pytest


@pytest.fixture
def axes():
    figure = pytest.importorskip("matplotlib.figure", reason="needs the extra 'experiments'")
    return figure.Figure().subplots()
