"""Writes a repository's address into what the package index shows: address.py ADDRESS TAG."""

import re
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[1]
address, tag = sys.argv[1].rstrip("/"), sys.argv[2]

project = root / "pyproject.toml"
text = project.read_text(encoding="utf-8")
pages = {"Repository": "", "Documentation": f"/tree/{tag}/docs", "Issues": "/issues"}
pages["Changelog"] = f"/blob/{tag}/CHANGELOG.md"
lines = "".join(f'{name} = "{address}{page}"\n' for name, page in pages.items())
text, count = re.subn(r"(?m)^\[project\.urls\]\n", lambda found: found[0] + lines, text)
assert count == 1, f"{project} has no [project.urls]"
project.write_text(text, encoding="utf-8", newline="\n")

# the index has neither the pages nor the pictures that README.md links to
readme = root / "README.md"
text = readme.read_text(encoding="utf-8")
text = re.sub(r"(!\[[^]]*\]\()(?!\w+:|#)", rf"\g<1>{address}/raw/{tag}/", text)
text = re.sub(r"(?<!!)(\[[^]]*\]\()(?!\w+:|#)", rf"\g<1>{address}/blob/{tag}/", text)
readme.write_text(text, encoding="utf-8", newline="\n")
