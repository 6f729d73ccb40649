import os
import platform
import subprocess
import sys

import pytest

# memory in use before a block is taken, while it is held and after it was freed, in MB
_CODE = """
import ctypes
import resource
from pathlib import Path
from rnnorm.experiments.training.allocator import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
before = resident()
block = c.malloc(ctypes.c_size_t(100_000_000))
ctypes.memset(ctypes.c_void_p(block), 1, 100_000_000)
held = resident()
c.free(ctypes.c_void_p(block))
print(held - before, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone has options")
@pytest.mark.parametrize(
    ("environment", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)]
)
def test_freed_memory_is_kept_unless_the_environment_says_otherwise(environment, kept):
    given = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    run = [sys.executable, "-c", _CODE]
    said = subprocess.run(
        run, env=given | environment, capture_output=True, text=True, check=True
    ).stdout
    held, after = map(float, said.split())
    assert held > 90
    assert after > 90 if kept else after < 10
