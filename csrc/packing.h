// a tile's rows of a weight, packed as a panel for products, and its gradient unpacked from one
#pragma once
#include "matmul.h"
#include "tiling.h"

namespace rnnorm {
namespace {

// calls square(row of the weight, column of the tile, k) for whole squares of W, the first k
// below `whole`, else element(row, column, k, whether the unit exists) below `count`, over a
// tile's rows of a weight (gates H, .), of the gates [begin, end)
template <class T, class Square, class Element>
void each_weight(int64_t H, int64_t whole, int64_t count, Units u, int begin, int end,
                 Square square, Element element) {
  const int64_t squares = u.count == tile_units ? whole / widest<T> * widest<T> : 0;
  for (int g = begin; g < end; ++g) {
    const int64_t row = g * H + u.first, column = (g - begin) * u.width;
    for (int64_t k = 0; k < squares; k += widest<T>)
      for (int64_t j = 0; j < u.count; j += widest<T>) square(row + j, column + j, k);
    for (int64_t j = 0; j < u.width; ++j)
      for (int64_t k = squares; k < count; ++k) element(row + j, column + j, k, j < u.count);
  }
}

// packs the rows of a weight (gates H, K) that belong to a tile and the gates [begin, end) as a
// panel of C columns
template <class T, int C>
void pack_columns(const void* weight, int64_t H, int64_t K, Units u, Factor<T>* panel, int begin,
                  int end) {
  using F = Factor<T>;
  const auto* w = static_cast<const Stored<T>*>(weight);
  const int64_t count = row_factors(K);
  each_weight<T>(
      H, K / per_factor, count, u, begin, end,
      [&](int64_t row, int64_t column, int64_t k) {
        transpose<widest<T>>(w + row * K + k * per_factor, K,
                             panel + in_panel<T, C>(count, k, column), slice<T, C>);
      },
      [&](int64_t row, int64_t column, int64_t k, bool real) {
        F& to = panel[in_panel<T, C>(count, k, column)] = F(0);
        const int64_t first = k * per_factor, numbers = smaller(per_factor, K - first);
        if (real && numbers > 0)
          std::memcpy(&to, w + row * K + first, size_t(numbers) * sizeof(*w));
      });
}

// unpacks a panel of the tile's columns, those of G gates, to the rows of a weight (G H, K)
template <int G, class T>
void unpack_columns(const T* panel, int64_t H, int64_t K, Units u, void* weight) {
  constexpr int W = widest<T>;
  auto* w = static_cast<Stored<T>*>(weight);
  const int64_t C = G * u.width;
  each_weight<T>(
      H, K, K, u, 0, G,
      [&](int64_t row, int64_t column, int64_t k) {
        if constexpr (paired) {
          T square[W * W];
          transpose<W>(panel + k * C + column, C, square, W);
          for (int r = 0; r < W; ++r) copy(square + r * W, W, w + (row + r) * K + k);
        } else {
          transpose<W>(panel + k * C + column, C, w + row * K + k, K);
        }
      },
      [&](int64_t row, int64_t column, int64_t k, bool real) {
        if (real) copy(panel + k * C + column, 1, w + row * K + k);
      });
}

// the numbers of two rows side by side, zeros of a row that is null
template <class T>
RNNORM_INLINE void pair_up(const Stored<T>* a, const Stored<T>* b, int64_t count, Factor<T>* to) {
  for (int64_t k = 0; a && b && k < count; ++k) to[k] = Factor<T>(uint32_t(b[k]) << 16 | a[k]);
  for (int64_t k = 0; !b && a && k < count; ++k) to[k] = a[k];
}

}  // namespace
}  // namespace rnnorm
