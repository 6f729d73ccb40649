"""Leaves out a file of tests that needs Triton's interpreter: imported first, by each."""

import os

import pytest

pytest.importorskip("triton", reason="`make triton` runs these")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("`make triton` runs these, with TRITON_INTERPRET=1", allow_module_level=True)
