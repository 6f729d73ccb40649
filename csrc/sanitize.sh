#!/usr/bin/env bash
# builds the kernels with a sanitizer and runs them: sanitize.sh address|thread [folder]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
kind=$1
folder=${2:-$(mktemp -d)}
mkdir -p "$folder"
case $kind in
  address) flags=(-fsanitize=address,undefined -fno-sanitize-recover=all -fopenmp) ;;
  # GNU OpenMP's barrier is opaque to it
  thread) flags=(-fsanitize=thread -DRNNORM_STANDARD_THREADS -pthread) ;;
  *) echo "the sanitizer must be address or thread, got $kind" >&2; exit 2 ;;
esac
common=(-std=gnu++17 -O1 -g1 -march=native -fno-math-errno -fno-trapping-math
  -DRNNORM_FORWARD=rnnorm_forward_portable -DRNNORM_BACKWARD=rnnorm_backward_portable)
pids=()
for source in forward backward dispatch sanitize; do
  "${CXX:-c++}" "${common[@]}" "${flags[@]}" -c "$source.cpp" -o "$folder/$kind-$source.o" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
"${CXX:-c++}" "${flags[@]}" "$folder/$kind"-{forward,backward,dispatch,sanitize}.o -o "$folder/$kind"
# the scratch block is kept until its thread ends, and OpenMP's pool until the process does
ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=4 "$folder/$kind"
