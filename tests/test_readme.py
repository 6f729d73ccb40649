"""What the front page promises."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_code_in_the_readme_runs():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert not missing
