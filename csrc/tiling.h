// hidden units in tiles, which threads own
#pragma once
#include <type_traits>

#include "vector.h"

namespace rnnorm {
namespace {

constexpr int64_t tile_units = 16;

RNNORM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
RNNORM_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
RNNORM_INLINE int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// units [first, first + count) of the layer, computed U at a time
struct Units {
  int64_t first, count, width;
};

template <int U>
struct Width {
  static constexpr int value = U;
};

// calls the body with a tile's number of units as a type
template <class Body>
RNNORM_INLINE void with_width(int64_t width, Body body) {
  if (width == 16)
    body(Width<16>{});
  else if (width == 8)
    body(Width<8>{});
  else
    body(Width<4>{});
}

// hidden units in tiles of 16 and a last one of 4, 8 or 16
struct Tiling {
  int64_t H, count, padded;

  explicit Tiling(int64_t hidden) : H(hidden) {
    const int64_t rest = H % tile_units;
    count = quotient_up(H, tile_units);
    padded = H - rest + (rest == 0 ? 0 : rest <= 4 ? 4 : rest <= 8 ? 8 : tile_units);
  }
  Units operator[](int64_t index) const {
    const int64_t first = index * tile_units;
    return {first, smaller(H - first, tile_units), smaller(padded - first, tile_units)};
  }
  // first tile of a thread's share, by the columns that it has to compute
  int64_t share(int64_t rank, int64_t team) const {
    return rank == team ? count : (padded * rank + team * tile_units / 2) / (team * tile_units);
  }
  // calls body(width as a type, units) for the tiles [first, last), or from the last to the first
  template <class Body>
  RNNORM_INLINE void each(int64_t first, int64_t last, Body body, bool backwards = false) const {
    for (int64_t i = first; i < last; ++i) {
      const Units u = (*this)[backwards ? first + last - 1 - i : i];
      with_width(u.width, [&](auto width) __attribute__((always_inline)) { body(width, u); });
    }
  }
};

// calls the body with a flag as a type
template <class Body>
RNNORM_INLINE void either(bool flag, Body body) {
  if (flag)
    body(std::true_type{});
  else
    body(std::false_type{});
}

// calls the body with two flags as types
template <class Body>
RNNORM_INLINE void either(bool flag, bool other, Body body) {
  either(flag, [&](auto first) { either(other, [&](auto second) { body(first, second); }); });
}

}  // namespace
}  // namespace rnnorm
