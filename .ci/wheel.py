"""Builds the wheel, and trains with it in an environment that has torch but no compiler."""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import torch

root = Path(__file__).resolve().parents[1]
pip = [sys.executable, "-m", "pip"]

with tempfile.TemporaryDirectory() as folder:
    # not isolated, as in `make venv`: the kernels are compiled, unless their sources have changed
    build = [*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, root]
    subprocess.run(build, check=True)
    wheels = list(Path(folder).glob("*.whl"))
    print(*(wheel.name for wheel in wheels))
    assert len(wheels) == 1
    assert "-py3-none-" in wheels[0].name
    # what a user's cell is compiled from
    sources = zipfile.Path(wheels[0], "rnnorm/kernels/cpu/csrc/")
    for name in ("forward.cpp", "backward.cpp", "layer.h", "compiler_options.txt"):
        assert (sources / name).is_file(), f"the wheel lacks csrc/{name}"

    empty = Path(folder, "empty")
    venv.create(empty)
    python = empty / "bin" / "python"
    install = [*pip, "--python", python, "install", "--no-deps", "--no-index", wheels[0]]
    subprocess.run(install, check=True)
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.check_output(ask, text=True).strip())
    # torch and what it needs, without a second copy of them
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")

    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    environment |= {"PATH": str(python.parent), "RNNORM_REQUIRE_CPU": "1"}
    script = root / ".ci" / "train_step.py"
    subprocess.run([python, script], cwd=folder, env=environment, check=True)
