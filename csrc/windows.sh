#!/usr/bin/env bash
# builds the kernels for Windows with MinGW-w64, and runs them in Wine: windows.sh [folder]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
compiler=${CXX:-x86_64-w64-mingw32-g++-posix}
# Debian keeps it out of the path
wine=$(PATH=$PATH:/usr/lib/wine command -v wine64 || command -v wine || true)
for tool in "$compiler" cmake ninja "${wine:-wine64}"; do
  command -v "$tool" >/dev/null && continue
  echo "skipped: the kernels are not tried on Windows, $tool is missing" >&2
  exit 0
done
RNNORM_REQUIRE_CPU=1 cmake -G Ninja -S .. -B "$folder" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=x86_64 -DCMAKE_CXX_COMPILER="$compiler"
cmake --build "$folder"
options=(-std=gnu++17 -O2 -Wall -Wextra -static)
"$compiler" "${options[@]}" loader.cpp -o "$folder/loader.exe"
# of the objects of the library, which lie in folders with the names of the builds
"$compiler" "${options[@]}" -DRNNORM_WITHOUT_MODEL sanitize.cpp \
  "$folder"/CMakeFiles/rnnorm*.dir/csrc/*.obj -lntdll -o "$folder/driver.exe"

# not in the folder: it links to the whole disk, which the building of an sdist would read through
WINEPREFIX=$(mktemp -d)
trap 'rm -rf "$WINEPREFIX"' EXIT
export WINEDEBUG=-all WINEPREFIX
timeout 300 "$wine" "$folder/loader.exe" "$folder/librnnorm.dll"
for build in portable avx2 avx512 avx512_bf16; do
  case $build in
    portable) needed=sse2 ;;
    avx512) needed=avx512bw ;;
    *) needed=$build ;;
  esac
  if grep -qw "$needed" /proc/cpuinfo; then
    RNNORM_CPU_ISA=$build timeout 1200 "$wine" "$folder/driver.exe" 5
  else
    echo "skipped: this processor does not run the build $build"
  fi
done
