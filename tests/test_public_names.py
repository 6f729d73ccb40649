"""What ``import rnnorm`` gives, and when."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rnnorm

ROOT = Path(__file__).parent.parent


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_import_alone_needs_nothing_else():
    run(
        "import sys; before = set(sys.modules); import rnnorm\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert new <= {*sys.stdlib_module_names, 'rnnorm'}, new\n"
        "assert not any(name.startswith('rnnorm.experiments') for name in sys.modules)"
    )


@pytest.mark.slow
def test_each_use_may_be_the_first(tmp_path):
    (tmp_path / "layer").write_bytes(pickle.dumps(rnnorm.LSTM(2, 3, norm="batch")))
    statements = [
        statement
        for name in ("LSTM", "init", "update_bn", "layers", "kernels")
        for statement in (
            f"import rnnorm; rnnorm.{name}; assert '{name}' in dir(rnnorm)",
            f"from rnnorm import {name}",
        )
    ]
    statements += [
        "from rnnorm import *; import rnnorm; assert set(rnnorm.__all__) <= set(globals())",
        f"import pickle; pickle.load(open({str(tmp_path / 'layer')!r}, 'rb'))",
        "import rnnorm; assert 'rnnorm.diagnostics' not in sys.modules; "
        "import rnnorm.diagnostics; assert 'matplotlib' not in sys.modules",
        "import rnnorm\n"
        "f = torch.compile(lambda x: x * len(rnnorm.backends()), backend='eager')\n"
        "assert f(torch.ones(1)).item() == len(rnnorm.backends())",
    ]
    # torch, which takes the longest, is imported once
    run(f"""
import os, sys, torch
for statement in {statements}:
    child = os.fork()
    if child == 0:
        exec(statement)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, statement
""")


def test_every_public_name_is_there():
    assert all(hasattr(rnnorm, name) for name in rnnorm.__all__)
    assert set(rnnorm.__all__) <= set(dir(rnnorm))


def test_a_name_that_is_none_is_an_error():
    with pytest.raises(AttributeError, match="module 'rnnorm' has no attribute 'LTSM'"):
        rnnorm.LTSM  # noqa: B018
    with pytest.raises(ImportError):
        exec("from rnnorm import LTSM")


def test_the_docs_list_the_attributes_that_a_layer_adds_to_torchs():
    page = (ROOT / "docs/coming-from-torch.md").read_text(encoding="utf-8")
    added = set(dir(rnnorm.LSTM(2, 3))) - set(dir(torch.nn.LSTM(2, 3)))
    assert not {name for name in added if not name.startswith("_") and f"`{name}`" not in page}
