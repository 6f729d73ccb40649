import pytest
import yaml
from recorded_runs import BN, LSTM


@pytest.fixture
def folder(tmp_path):
    """A folder of recorded files: one table of two recipes, none of them run."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    table = {"title": "Characters", "recipes": [LSTM, BN], "text": "What *we* think."}
    (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "Before.", "tables": [table]}))
    return folder
