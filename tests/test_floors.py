"""Nothing imports upwards, neither in the core nor between the rooms of the experiments."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import rnnorm

PACKAGE = Path(rnnorm.__file__).parent
#: from the ground up: a floor may import itself and what stands before it
FLOORS = ("tracing", "norm", "cells", "kernels", "init", "layers", "model", "export", "convert")
FLOORS += ("lightning", "torchrl", "diagnostics")
ROOMS = (
    "console",
    "files",
    "writing",
    "private_apis",
    "recipes",
    "recipe",
    "data",
    "training",
    "models",
    "bench",
)
ROOMS += ("searching", "tasks", "trained", "pictures", "comparing", "reporting", "commands")


def imported(path):
    """Names of rnnorm's own modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("rnnorm."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rnnorm":
            yield from (f"{node.module}.{a.name}" for a in node.names)


def upwards(folder, prefix, floors):
    for path in sorted(folder.rglob("*.py")):
        here = path.relative_to(folder).with_suffix("").parts[0]
        if here not in floors:
            continue
        for name in imported(path):
            there = name.removeprefix(f"{prefix}.").split(".")[0]
            if name.startswith(prefix) and there in floors[floors.index(here) + 1 :]:
                yield f"{path.relative_to(folder).as_posix()} imports {name}"


def test_the_core_imports_nothing_from_a_floor_above():
    assert list(upwards(PACKAGE, "rnnorm", FLOORS)) == []


def test_the_kernels_in_cuda_import_nothing_from_those_in_triton_which_launch_them():
    files = (PACKAGE / "kernels" / "cuda").glob("*.py")
    assert [p for p in files if any("kernels.triton" in name for name in imported(p))] == []


def test_the_core_never_imports_the_experiments():
    # python -m rnnorm is a command of theirs
    command = PACKAGE / "__main__.py"
    core = [p for p in PACKAGE.rglob("*.py") if "experiments" not in p.parts and p != command]
    assert [p for p in core if any("experiments" in name for name in imported(p))] == []


def test_a_room_imports_only_rooms_below_it():
    assert list(upwards(PACKAGE / "experiments", "rnnorm.experiments", ROOMS)) == []


@pytest.mark.parametrize(
    ("folder", "known"), [(PACKAGE, {*FLOORS, "experiments"}), (PACKAGE / "experiments", {*ROOMS})]
)
def test_every_file_stands_on_a_floor(folder, known):
    stands = {p.stem for p in folder.iterdir() if p.suffix == ".py" or p.is_dir()}
    assert stands - {"__init__", "__main__", "__pycache__"} <= known


def test_a_folder_holds_at_most_twenty_modules():
    counts = Counter(path.parent for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert [f"{where} has {count}" for where, count in counts.items() if count > 20] == []


def test_an_import_upwards_is_found(tmp_path):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "spec.py").write_text("from rnnorm.layers import lstm\n")
    assert list(upwards(tmp_path, "rnnorm", FLOORS)) == ["norm/spec.py imports rnnorm.layers.lstm"]
