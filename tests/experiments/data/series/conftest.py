import os
from pathlib import Path

import pytest


@pytest.fixture
def data_dir():
    folder = os.environ.get("RNNORM_DATA")
    if not folder or not (Path(folder) / "timeseries").is_dir():
        pytest.skip("RNNORM_DATA does not name a folder with timeseries/")
    return Path(folder)
