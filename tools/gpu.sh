#!/bin/sh
# Makes the checks that need a GPU, the most important ones first, in less than ten minutes:
#
#     OUT=build/gpu PYTHON=python3 tools/gpu.sh
#
# PYTHON needs torch for CUDA, Triton, pytest and pytest-xdist; the checkout needs no installation.
# Each part has a time limit and writes a log in OUT as it goes. It runs even if an earlier part
# failed, unless there is no GPU. The last line names the parts that failed.
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
# not among the logs: there are hundreds of files
export RNNORM_CACHE="${RNNORM_CACHE:-build/gpu-cache}"
# what is cut off has written its log
export PYTHONUNBUFFERED=1
# there are as many processes as cores
export OMP_NUM_THREADS=1
failed=

part() {
  name=$1 seconds=$2
  shift 2
  echo "== $name"
  # pytest tells of failures when it is interrupted
  timeout -s INT -k 10 "$seconds" "$@" >"$OUT/$name.log" 2>&1
  code=$?
  tail -n 12 "$OUT/$name.log"
  [ $code = 0 ] || failed="$failed $name($code)"
}
tests() {
  name=$1 seconds=$2
  shift 2
  # a test that hangs ends its process, which xdist replaces
  part "$name" "$seconds" "$PYTHON" -m pytest -vv -p no:cacheprovider --tb=short $limit \
    -W default::DeprecationWarning -W default::FutureWarning "$@"
}
limit=
"$PYTHON" -c "import pytest_timeout" 2>/dev/null && limit="--timeout=60 --timeout-method=thread"
kernels="tests/kernels/test_cuda_kernels.py tests/kernels/test_cuda_own_cell.py"

part machine 60 "$PYTHON" -c "
import rnnorm, torch
from rnnorm.kernels.cuda import compiler
nvrtc, why = compiler._load()
print('torch', torch.__version__, 'NVRTC', nvrtc.version if nvrtc else why)
print(torch.cuda.get_device_properties(0), rnnorm.backends())"
[ -z "$failed" ] || exit 1
# eight processes compile the kernels, which takes longest; the second run finds them compiled, and
# no other process uses the GPU meanwhile
tests kernels 100 -n 8 $kernels
tests kernels_alone 90 -n 1 $kernels
examine="
import sys
from rnnorm.experiments.bench.cases import all_cases
from rnnorm.experiments.bench.check import OutOfTimeError, check
try:
    right = check('cuda', cases=list(all_cases())[int(sys.argv[1])::14], budget=45, timed=())
except OutOfTimeError:
    right = True
sys.exit(not right)"
part check 90 sh -c 'seq 0 13 | xargs -P 14 -I {} "$0" -c "$1" {}' "$PYTHON" "$examine"
tests triton 90 -n 8 $(printf 'tests/kernels/test_triton_%s.py ' equations update look_up operators graphs) \
  tests/kernels/test_replayed_reference.py
for backend in triton cuda; do
  part "speed_$backend" 45 "$PYTHON" benchmarks/gpu.py --no-reference --cell LSTM \
    --shape 50x64x128x512 --backend $backend
done
tests values 40 -n 8 tests/kernels/test_triton_values.py

echo "== not passed:${failed:- none}"
[ -z "$failed" ]
