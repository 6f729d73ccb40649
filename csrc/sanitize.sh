#!/usr/bin/env bash
# builds the kernels with their driver and runs it: sanitize.sh address|thread|aarch64 [folder]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
kind=$1
folder=${2:-$(mktemp -d)}
mkdir -p "$folder"
compiler=${CXX:-c++}
emulator=() stride=1
sources=(forward backward dispatch team update sanitize)
case $kind in
  address)
    flags=(-O0 -g1 -march=native -fsanitize=address,undefined -fno-sanitize-recover=all -fopenmp) ;;
  # GNU OpenMP's barrier is opaque to it
  thread)
    flags=(-O0 -g1 -march=native -fsanitize=thread -DRNNORM_STANDARD_THREADS -pthread)
    sources+=(pool) stride=3 ;;
  # slow: fewer cases, as under the thread sanitizer
  aarch64)
    stride=5
    compiler=aarch64-linux-gnu-g++
    emulator=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
    for tool in "$compiler" "${emulator[0]}"; do
      command -v "$tool" >/dev/null && continue
      echo "skipped: the kernels are not tried on aarch64, $tool is missing" >&2
      exit 0
    done
    flags=(-O2 -Wall -Wextra -ffp-contract=fast -fopenmp) ;;
  *) echo "the kind must be address, thread or aarch64, got $kind" >&2; exit 2 ;;
esac
# a folder of its own, as kinds may be built at once
mkdir -p "$folder/equations-$kind"
"${PYTHON:-python3}" -B generate.py "$folder/equations-$kind/cells.h"
common=(-std=gnu++17 -I. "-I$folder/equations-$kind" -fno-math-errno -fno-trapping-math)
pids=() objects=()
# compile NAME SOURCE [OPTION ...]
compile() {
  objects+=("$folder/$kind-$1.o")
  "$compiler" "${common[@]}" "${flags[@]}" "${@:3}" -c "$2.cpp" -o "${objects[-1]}" &
  pids+=($!)
}
for source in "${sources[@]}"; do
  compile "$source" "$source" \
    -DRNNORM_FORWARD=rnnorm_forward_portable -DRNNORM_BACKWARD=rnnorm_backward_portable \
    -DRNNORM_UPDATE=rnnorm_update_portable
done
# products of bfloat16, those of 16 rows and more by the model of AMX
for source in forward backward; do
  compile "$source-pairs" "$source" \
    -DRNNORM_PAIRS -DRNNORM_AMX -DRNNORM_AMX_MODEL -DRNNORM_VECTOR_BYTES=64 -Wno-psabi \
    -DRNNORM_FORWARD=rnnorm_forward_pairs -DRNNORM_BACKWARD=rnnorm_backward_pairs
done
for pid in "${pids[@]}"; do wait "$pid"; done
"$compiler" "${flags[@]}" "${objects[@]}" -o "$folder/$kind"
# the scratch block is kept until its thread ends, and OpenMP's pool until the process does; waiting
# threads leave the processor to those of other tests
ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=4 OMP_WAIT_POLICY=passive "${emulator[@]}" "$folder/$kind" "$stride"
