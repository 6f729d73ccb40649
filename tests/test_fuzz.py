"""A sample of what `python tests/fuzz.py --count 5000` and `python tests/fuzz_options.py` try."""

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limits of memory are Linux's")
def test_values_of_no_sense_are_refused_by_the_name_of_their_option():
    fuzz = Path(__file__).with_name("fuzz_options.py")
    done = subprocess.run(
        [sys.executable, fuzz, "--sample", "60"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 values given" in done.stdout
