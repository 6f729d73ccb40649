#!/bin/sh
# Makes the checks that need a GPU, the most important ones first, in less than ten minutes:
#
#     OUT=build/gpu PYTHON=python3 tools/gpu.sh
#
# PYTHON needs torch for CUDA; the checkout needs no installation. Each part has a time limit and a
# log in OUT, and runs even if an earlier part failed. The last line names the parts that failed.
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
export RNNORM_CACHE="${RNNORM_CACHE:-$OUT/cache}"
failed=

part() {
  name=$1 seconds=$2
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" >"$OUT/$name.log" 2>&1
  code=$?
  tail -n 12 "$OUT/$name.log"
  [ $code = 0 ] || failed="$failed $name($code)"
}
tests() {
  name=$1 seconds=$2
  shift 2
  part "$name" "$seconds" "$PYTHON" -m pytest -p no:cacheprovider --tb=short "$@"
}

part machine 40 "$PYTHON" -c "
import rnnorm, torch
print(torch.__version__, torch.cuda.get_device_name(), rnnorm.backends())"
# in one process, because all blocks of a kernel have to be on the GPU at once
tests kernels 150 tests/kernels/test_cuda_kernels.py
tests own_cells 70 tests/kernels/test_cuda_own_cell.py
tests triton 110 -n 8 $(printf 'tests/kernels/test_triton_%s.py ' equations update look_up operators graphs)
part check 100 "$PYTHON" -c "
import sys
from rnnorm.experiments.bench.check import check
sys.exit(not check('cuda', out='$OUT/check.json', budget=65, timed=()))"
part speed 60 "$PYTHON" benchmarks/gpu.py --no-reference --cell LSTM --shape 50x64x128x512
tests values 60 -n 8 tests/kernels/test_triton_values.py

echo "== not passed:${failed:- none}"
[ -z "$failed" ]
