from importlib.metadata import PackageNotFoundError

import pytest

from rnnorm.kernels.triton import layer


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ("3.5.1", r"it needs Triton 3.6, installed is 3.5.1: pip install 'triton>=3.6'"),
        ("3.6.0", ""),
        ("3.10.0+git1", ""),
        # under a name of torch's own
        (None, ""),
    ],
)
def test_a_triton_that_is_too_old_is_named(installed, said, monkeypatch):
    def version(name):
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(layer, "find_spec", lambda name: True)
    monkeypatch.setattr(layer, "version", version)
    assert layer._unavailable() == said
