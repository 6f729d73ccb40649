"""A few changed files of each format; `python tests/fuzz.py --count 5000` reads thousands."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="needs the extra 'experiments'")


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of memory are Linux's")
def test_changed_files_of_every_format_are_read_or_refused():
    fuzz = Path(__file__).with_name("fuzz.py")
    done = subprocess.run(
        [sys.executable, fuzz, "--count", "20"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("20 read") > 30
