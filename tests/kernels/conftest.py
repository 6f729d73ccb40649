import os

import pytest
import torch

from rnnorm.kernels import run_time_compilation
from rnnorm.kernels.cpu import compiler
from rnnorm.kernels.cpu.library import UNAVAILABLE
from rnnorm.kernels.precision import products_in

# without it some versions of torch refuse products on a GPU where fresh memory is NaN
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def _needs_the_library(request):
    if UNAVAILABLE and "_cpu_" in request.path.name:
        pytest.skip(UNAVAILABLE)


@pytest.fixture(autouse=True)
def _as_exact_as_the_reference(request):
    ours = "_triton_" in request.path.name or "_cuda_" in request.path.name
    if not ours or not torch.cuda.is_available():
        yield
        return
    with products_in("ieee"):
        yield
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        # a kernel's error spoils the GPU for its process, which xdist then replaces
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
        raise


@pytest.fixture
def fresh_memory_is_nan():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def compiling(tmp_path_factory):
    """One cache for the tests of a file, whose cells are compiled without optimisation.

    That takes a fifth of the time. The value gives the options of users' cells.
    """
    if UNAVAILABLE:
        pytest.skip(UNAVAILABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(run_time_compilation.SWITCH, "1")
        patch.setenv(run_time_compilation.FOLDER, str(tmp_path_factory.mktemp("cells")))
        if reason := compiler.unavailable():
            pytest.skip(reason)
        sources = compiler._sources
        folder, options = sources()
        quick = options | {"all": [o if o != "-O3" else "-O0" for o in options["all"]]}
        patch.setattr(compiler, "_sources", lambda: (folder, quick))
        yield sources


@pytest.fixture
def uncompiled(monkeypatch):
    """Stands for the compiler, and notes what it compiles."""
    compiled = []

    def note(text, numbers, name):
        compiled.append(text)
        raise compiler.CompilationError("the test compiles nothing")

    monkeypatch.setattr(compiler, "compile", note)
    return compiled
