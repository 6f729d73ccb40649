#!/usr/bin/env bash
# compiles and links the kernels for macOS with `zig c++`, without running them: macos.sh [folder]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
zig=${ZIG:-zig}
if ! command -v "$zig" >/dev/null; then
  echo "skipped: the kernels are not compiled for macOS, $zig is missing (pip install ziglang)" >&2
  exit 0
fi
"${PYTHON:-python3}" -B generate.py "$folder/cells.h"
avx512="-mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma"
for target in aarch64-macos x86_64-macos; do
  compiler=("$zig" c++ -target "$target" -std=gnu++17 -I. "-I$folder" -fPIC -fvisibility=hidden -Wall -Wextra
    -fno-math-errno -fno-trapping-math -ffp-contract=fast -DRNNORM_STANDARD_THREADS)
  builds=("portable")
  if [ "$target" = x86_64-macos ]; then
    builds+=("avx2 -mavx2 -mfma" "avx512 $avx512" "avx512_bf16 $avx512 -mavx512bf16 -DRNNORM_PAIRS")
    compiler+=(-DRNNORM_X86 -DRNNORM_X86_BFLOAT16)
  fi
  objects=()
  for build in "${builds[@]}"; do
    read -r name flags <<<"$build"
    for source in forward backward update; do
      objects+=("$folder/$target-$name-$source.o")
      # shellcheck disable=SC2086
      "${compiler[@]}" $flags -DRNNORM_FORWARD="rnnorm_forward_$name" \
        -DRNNORM_BACKWARD="rnnorm_backward_$name" -DRNNORM_UPDATE="rnnorm_update_$name" \
        -c "$source.cpp" -o "${objects[-1]}"
    done
  done
  "${compiler[@]}" -shared dispatch.cpp team.cpp pool.cpp "${objects[@]}" -o "$folder/librnnorm-$target.dylib"
  echo "$target: compiled and linked"
done
