"""What Lightning and jsonargparse keep private is used in one file."""

import ast
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from torch import nn

import rnnorm
from rnnorm.experiments import private_apis

PACKAGE = Path(rnnorm.__file__).parent
LIBRARIES = ("lightning", "pytorch_lightning", "jsonargparse")


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


#: private names of torch's modules and loaders, of named tuples and of optuna's trials
OTHERS = {*dir(nn.Module), "_iterator", "_replace", "_asdict", "_storage", "_suggest", "_trial_id"}
CLASSES = (LightningModule, LightningDataModule, Callback, Trainer, LightningCLI, ArgumentParser)
INHERITED = {name for c in CLASSES for name in filter(is_private, dir(c))} - OTHERS


def uses(text):
    """Yield the private names of the libraries that a file imports, reads or overrides.

    Of a file that imports one of the libraries, every object but ``self`` may be theirs.
    """
    nodes, imported = list(ast.walk(ast.parse(text))), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.update(f"{node.module}.{alias.name}" for alias in node.names)
    imported = {name for name in imported if name.split(".")[0] in LIBRARIES}
    if not imported:
        return
    yield from (name for name in imported if any(map(is_private, name.split("."))))
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr in INHERITED or not (own or node.attr in OTHERS):
                yield node.attr
        elif isinstance(node, ast.FunctionDef) and node.name in INHERITED:
            yield node.name


@pytest.mark.parametrize(
    "text",
    [
        "from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher",
        "from jsonargparse import _typehints",
        "from jsonargparse._util import import_object",
        "def late():\n    import jsonargparse._util",
        "from lightning.pytorch import Trainer\nTrainer()._logger_connector",
        "from lightning.pytorch.cli import LightningCLI as C\nclass D(C):\n"
        "    def _add_configure_optimizers_method_to_model(self): ...",
        "from lightning.pytorch.cli import LightningCLI as C\nclass D(C):\n"
        "    def parse(self): self._parser('fit')",
    ],
)
def test_a_private_part_is_found(text):
    assert len(list(uses(text))) == 1


def test_one_file_touches_what_lightning_and_jsonargparse_keep_private():
    files = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    assert set(uses(files.pop(Path(private_apis.__file__))))
    assert [(path.name, name) for path, text in files.items() for name in uses(text)] == []
