"""What ``import rnnorm`` gives, and when."""

import pickle
import subprocess
import sys

import pytest

import rnnorm


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_import_alone_needs_no_torch():
    run("import sys, rnnorm; assert 'torch' not in sys.modules")


def test_each_name_is_there_where_nothing_else_was_asked_for():
    statements = [
        statement
        for name in ("LSTM", "init", "update_bn", "layers", "kernels")
        for statement in (
            f"import rnnorm; rnnorm.{name}; assert '{name}' in dir(rnnorm)",
            f"from rnnorm import {name}",
        )
    ]
    # torch, which takes the longest, is imported once
    run(f"""
import os, torch
for statement in {statements}:
    child = os.fork()
    if child == 0:
        exec(statement)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, statement
""")


def test_a_star_gives_all_public_names():
    run("from rnnorm import *; import rnnorm; assert set(rnnorm.__all__) <= set(globals())")


def test_every_public_name_is_there():
    assert all(hasattr(rnnorm, name) for name in rnnorm.__all__)
    assert set(rnnorm.__all__) <= set(dir(rnnorm))


def test_a_name_that_is_none_is_an_error():
    with pytest.raises(AttributeError, match="module 'rnnorm' has no attribute 'LTSM'"):
        rnnorm.LTSM  # noqa: B018
    with pytest.raises(ImportError):
        exec("from rnnorm import LTSM")


def test_a_pickled_layer_is_read_in_a_process_that_imported_nothing(tmp_path):
    (tmp_path / "layer").write_bytes(pickle.dumps(rnnorm.LSTM(2, 3, norm="batch")))
    run(f"import pickle; pickle.load(open({str(tmp_path / 'layer')!r}, 'rb'))")


def test_a_compiled_function_may_be_the_first_to_ask_for_a_name():
    run(
        "import torch, rnnorm\n"
        "f = torch.compile(lambda x: x * len(rnnorm.backends()), backend='eager')\n"
        "assert f(torch.ones(1)).item() == len(rnnorm.backends())"
    )
