# the first python on the path that is new enough; choose another with `make PYTHON=...`
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 python3.10,\
	$(shell $(p) -c 'import sys; sys.version_info >= (3, 10) and print("$(p)")' 2>/dev/null)))
TORCH ?= torch==2.13.0
# from .venv rather than an environment of pip's own, so that `make wheel` finds the kernels compiled
BUILD := "scikit-build-core>=0.11" cmake ninja

BIN := .venv/bin
DEMO := .venv/.rnnorm-demo
STAMP := .venv/.rnnorm-installed

# one compilation at a time on each core
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# each process of a test would compile torch and lightning anew
unexport PYTHONDONTWRITEBYTECODE

# tests that need real data sets look here and skip without it
ifneq ($(wildcard ../shared/data),)
export RNNORM_DATA ?= $(abspath ../shared/data)
endif

# for `make slow-third older floor newest triton-sixth`: another seed draws other tests
SEED ?= $(shell date +%Y%m%d)
ifneq ($(shell grep -m1 -o avx512f /proc/cpuinfo 2>/dev/null),)
OLDER := RNNORM_CPU_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
else
OLDER := RNNORM_CPU_ISA=portable ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default
endif

# the oldest versions that are promised, on the oldest Python, and the newest that were tried
FLOOR ?= torch==2.6.0 numpy==1.26.*
FLOOR_PYTHON ?= $(firstword $(foreach p,python3.10 $(wildcard $(HOME)/.pyenv/versions/3.10.*/bin/python) $(PYTHON),\
	$(shell $(p) -c 'print("$(p)")' 2>/dev/null)))
NEWEST ?= torch==2.14.1 numpy

# in a folder of its own, out of the sight of torch.compile and of the other tests
TRITON := .venv/triton
INTERPRETED := $(patsubst %,tests/kernels/test_triton_%.py,values equations loop look_up update operators memory graphs) \
	tests/kernels/test_cuda_kernels.py tests/kernels/test_cuda_own_cell.py
COMPILED := $(patsubst %,tests/kernels/test_%.py,triton_compiled cuda_compiled cuda_compiler)

.PHONY: venv demo test lint format pytest slow slow-third older floor floor-venv newest newest-venv docs doctest wheel sanitize aarch64 windows macos triton triton-sixth clean

venv: $(STAMP)

# the demo needs neither the tools of tests nor those of docs
$(DEMO): extras = experiments
$(STAMP): extras = experiments,dev,docs
$(DEMO) $(STAMP): pyproject.toml CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.h csrc/*.py src/rnnorm/cells/*.py \
	src/rnnorm/norm/spec.py src/rnnorm/kernels/equations/*.py src/rnnorm/kernels/cpu/bodies.py \
	src/rnnorm/kernels/cpu/generate.py src/rnnorm/kernels/cpu/statements.py)
	@test -n "$(PYTHON)" || { echo "rnnorm needs Python 3.10 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Setting up .venv: $(TORCH), then what rnnorm[$(extras)] needs, then its C++ kernels are compiled"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(BUILD)
	$(BIN)/python -m pip install --no-compile --no-build-isolation --editable ".[$(extras)]" "$(TORCH)"
	@touch $(DEMO) $@

demo: $(DEMO)
	$(BIN)/rnnorm demo

test: lint pytest docs doctest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# a worker a core, each with one thread; files of few tests may be the slow ones: none comes last
pytest: marked = not slow
slow slow-third: marked = slow
slow-third: drawn = --one-in 3 $(SEED)
pytest slow slow-third: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "$(marked)" $(drawn)

# kernels, layers and laws as an older processor
older: venv
	$(OLDER) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --one-in 6 $(SEED) tests/kernels tests/layers tests/laws

floor floor-venv: python = $(FLOOR_PYTHON)
floor floor-venv: versions = $(FLOOR)
newest newest-venv: python = $(PYTHON)
newest newest-venv: versions = $(NEWEST)
# pip fetches nothing where these versions are there
floor-venv newest-venv: folder = build/$(@:-venv=)
floor-venv newest-venv:
	test -x $(folder)/bin/pip || $(python) -m venv $(folder)
	$(folder)/bin/python -m pip install --quiet --no-compile --only-binary :all: $(foreach v,$(versions),"$(v)") pytest pytest-xdist hypothesis || \
		{ echo "$(folder) tests nothing: pip cannot install $(versions) with $(python)" >&2; exit 1; }

# the library's tests of the wheel
floor: floor-venv
newest: newest-venv
floor newest: venv
	rm -rf build/$@/wheel
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/$@/wheel .
	build/$@/bin/python -m pip install --quiet --no-deps --no-index --force-reinstall build/$@/wheel/rnnorm-*.whl
	build/$@/bin/python -c 'import sys, numpy, torch; print("Python", sys.version.split()[0], "torch", torch.__version__, "numpy", numpy.__version__)'
	OMP_NUM_THREADS=1 build/$@/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --one-in 6 $(SEED) --ignore tests/experiments tests

docs: venv
	$(BIN)/sphinx-build -q -W -n -b html docs docs/_build/html

# without running the examples, which the pages show
doctest: venv
	$(BIN)/sphinx-build -q -W -n -b doctest -D plot_gallery=0 docs docs/_build/doctest

# the wheel, installed beside torch without a compiler
wheel: venv
	$(BIN)/python .ci/wheel.py

# the C++ kernels under AddressSanitizer and UBSan, and under ThreadSanitizer
sanitize:
	PYTHON="$(PYTHON)" csrc/sanitize.sh address "$(CURDIR)/build/sanitize"
	PYTHON="$(PYTHON)" csrc/sanitize.sh thread "$(CURDIR)/build/sanitize"

# the C++ kernels for aarch64 in an emulator, where both are installed
aarch64:
	PYTHON="$(PYTHON)" csrc/sanitize.sh aarch64 "$(CURDIR)/build/sanitize"

# the C++ kernels for Windows in an emulator, and for macOS without running them, where the tools are
windows macos:
	PYTHON="$(PYTHON)" csrc/$@.sh "$(CURDIR)/build/$@"

# GPUs need Triton 3.6, whose interpreter fails with numpy 2.5: "only 0-dimensional arrays ..."
$(TRITON)/.installed: Makefile pyproject.toml | venv
	$(BIN)/python -m pip install --quiet --no-compile --upgrade --target $(TRITON) "triton>=3.7" nvidia-cuda-nvrtc
	@touch $@

$(TRITON)-oldest/.installed: Makefile pyproject.toml | venv
	$(BIN)/python -m pip install --quiet --no-compile --upgrade --no-deps --target $(TRITON)-oldest "triton==3.6.*"
	@touch $@

# the kernels for GPUs: interpreted, and compiled for GPUs that are not here: all tests, or a sixth of them
triton-sixth: drawn = --one-in 6 $(SEED)
triton triton-sixth: $(TRITON)/.installed $(TRITON)-oldest/.installed
	PYTHONPATH="$(CURDIR)/$(TRITON)" TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(drawn) $(INTERPRETED)
	PYTHONPATH="$(CURDIR)/$(TRITON)" RNNORM_COMPILE_TRITON=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(drawn) $(COMPILED)
	PYTHONPATH="$(CURDIR)/$(TRITON)-oldest" RNNORM_COMPILE_TRITON=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto \
		tests/kernels/test_triton_compiled.py -k "ward-80"

clean:
	rm -rf .venv docs/_build docs/examples build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
