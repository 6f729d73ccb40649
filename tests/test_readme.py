"""What the front page promises."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

import pytest
import torch

import rnnorm
from rnnorm.kernels import dispatch
from rnnorm.norm.presets import resolve

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def section(title):
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(title):
    """The first cell of each row of a table's body."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_code_in_the_readme_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_headings(page):
    # a code host makes an anchor of a heading's letters, and knows none of Sphinx's labels
    text = page.read_text(encoding="utf-8")
    for path, anchor in re.findall(r"\]\(([^):#]*\.md|)#([^)]+)\)", text):
        target = (page.parent / path).read_text(encoding="utf-8") if path else text
        headings = re.findall(r"^#+ (.*)$", target, flags=re.MULTILINE)
        letters = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
        assert anchor in letters, f"{path}#{anchor}"


def test_a_release_links_to_its_repository(tmp_path):
    for name in ("README.md", "pyproject.toml", ".ci/address.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, tmp_path / ".ci/address.py", "https://example.org/rnnorm", "v9.0"]
    subprocess.run(command, check=True)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert not [target for target in targets if "://" not in target]
    assert "https://example.org/rnnorm/raw/v9.0/docs/_static/demo.png" in targets
    assert "https://example.org/rnnorm/blob/v9.0/docs/speed.md" in targets
    project = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    assert 'Changelog = "https://example.org/rnnorm/blob/v9.0/CHANGELOG.md"' in project


@pytest.mark.slow
def test_the_source_archive_has_nothing_that_git_ignores(tmp_path):
    pytest.importorskip("scikit_build_core")
    build = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", build, tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    with tarfile.open(*tmp_path.iterdir()) as archive:
        paths = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()]
    assert {PurePosixPath("csrc/layer.h"), PurePosixPath("tests/test_readme.py")} <= set(paths)
    assert not {path.parts[0] for path in paths} & {".venv", "build", "dist", "runs"}
    assert not [path for path in paths if path.suffix in (".so", ".pyc") or "_build" in path.parts]


def test_each_norm_that_is_named_exists():
    layer_norms = README.split("**The layer norm that you have.**")[1].split("\n- **")[0]
    names = re.findall(r'"([^"]+)"', "".join(first_column("Norms")) + layer_norms)
    assert len(names) > 15
    for name in names:
        resolve(name)


def test_each_name_of_the_library_exists():
    # no file, and nothing whose import needs more than torch
    names = re.findall(r"\brnnorm\.(?!lightning|torchrl)([A-Za-z_]\w*)", README)
    assert names
    assert not {name for name in names if name not in rnnorm.__all__}


@pytest.mark.skipif(dispatch.backends()["cpu"] != "", reason="no fused CPU kernels")
@pytest.mark.parametrize(
    ("make", "fused"),
    [
        ("LSTM(3, 4, peephole='all', norm='layer')", True),
        ("LSTM(3, 4, peephole='full', norm='layer')", False),
        ("GRU(3, 4, reset_after=False, norm='layer')", False),
        ("GRU(3, 4, reset_after='both', norm='dreamer')", True),
        ("LiGRU(3, 4, norm='sligru')", True),
        ("IndRNN(3, 4, norm='layer')", True),
        ("MIRNN(3, 4, norm='layer')", False),
        ("ClockworkRNN(3, 4, norm='layer')", False),
        ("HMLSTM(3, 4, norm='layer')", False),
        *((f"LSTM(3, 4, norm={name!r})", True) for name in ("haste", "fastrnns", "sketch-rnn")),
        *((f"LSTM(3, 4, norm={name!r})", True) for name in ("torchaudio-rnnt", "tf-addons")),
        *((f"LSTM(3, 4, norm={name!r})", True) for name in ("layer-norm-basic", "rms", "batch")),
    ],
)
def test_what_is_said_to_run_on_fused_kernels_does(make, fused):
    before = dispatch.calls.copy()
    eval(make, vars(rnnorm))(torch.randn(3, 2, 3))
    used = set(dispatch.calls - before)
    assert used == ({"cpu"} if fused else {"reference"})
