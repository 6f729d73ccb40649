# the first python on the path that is new enough; choose another with `make PYTHON=...`
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 python3.10,\
	$(shell $(p) -c 'import sys; sys.version_info >= (3, 10) and print("$(p)")' 2>/dev/null)))
TORCH ?= torch==2.13.0

BIN := .venv/bin
STAMP := .venv/.rnnorm-installed

# tests that need real data sets look here and skip without it
ifneq ($(wildcard ../shared/data),)
export RNNORM_DATA ?= $(abspath ../shared/data)
endif

.PHONY: venv demo test lint format pytest docs doctest sanitize clean

venv: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard csrc/*)
	@test -n "$(PYTHON)" || { echo "rnnorm needs Python 3.10 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[experiments,dev,docs]" "$(TORCH)"
	@touch $@

demo: venv
	$(BIN)/rnnorm demo

test: lint pytest docs doctest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pytest: venv
	$(BIN)/python -m pytest

docs: venv
	$(BIN)/sphinx-build -q -W -n -b html docs docs/_build/html

doctest: venv
	$(BIN)/sphinx-build -q -W -n -b doctest docs docs/_build/doctest

# the C++ kernels under AddressSanitizer and UBSan, and under ThreadSanitizer
sanitize:
	csrc/sanitize.sh address build/sanitize
	csrc/sanitize.sh thread build/sanitize

clean:
	rm -rf .venv docs/_build build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
