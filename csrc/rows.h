// layer normalisation: the moments of rows by tile, and their merge over tiles
#pragma once
#include <utility>

#include "layer.h"
#include "tiling.h"

namespace rnnorm {
namespace {

// the number of a term's gates that share a mean and a variance, for each block
template <int... Gates>
struct Blocks {
  static constexpr int count = int(sizeof...(Gates));
  static constexpr int gates[] = {Gates...};
  static constexpr int all = (Gates + ...);
  static constexpr int begin = 0, end = count;
  static constexpr int before(int block) {
    return block ? before(block - 1) + gates[block - 1] : 0;
  }
};

// the blocks of a term from one gate on and before another
template <class R, int First, int Last>
struct Between : R {
  static constexpr int until(int gate) {
    int block = 0;
    while (block < R::count && R::before(block) < gate) ++block;
    return block;
  }
  static constexpr int begin = until(First), end = until(Last);
};

// the gates of a term, each by itself
template <class Index>
struct EachGate;
template <int... Gate>
struct EachGate<std::integer_sequence<int, Gate...>> {
  using GateBlocks = Blocks<(Gate - Gate + 1)...>;
};

// calls the body with the blocks that share statistics as a type
template <class Cell, class Body>
RNNORM_INLINE void with_blocks(int64_t over, Body body) {
  if (over == RNNORM_OVER_TERM)
    body(Blocks<Cell::gates>{});
  else if (over == RNNORM_OVER_GATE)
    body(typename EachGate<std::make_integer_sequence<int, Cell::gates>>::GateBlocks{});
  else
    body(typename Cell::GateBlocks{});
}

// whole vectors of rows are read
constexpr int64_t row_capacity(int64_t rows) { return (rows + 31) / 16 * 16; }

// two numbers of every row and block from each tile: the tile's thread writes them, all read them
template <class T>
struct Parts {
  T* data;
  int64_t capacity;
  int blocks;

  T* row(int64_t tile, int block, int which) const {
    return data + ((tile * blocks + block) * 2 + which) * capacity;
  }
};

// calls body(block, row, first column, last column) for a tile of n rows
template <class R, int U, class Body>
RNNORM_INLINE void each_row(int64_t n, Body body) {
#pragma GCC unroll 2
  for (int block = R::begin; block < R::end; ++block)
    for (int64_t r = 0; r < n; ++r)
      body(block, r, U * R::before(block), U * (R::before(block) + R::gates[block]));
}

// clears the units of a tile that do not exist, in the first `gates` of each row of G: sums over a
// row or in a product would see them, and a user's equations may make any numbers there
template <int U, int G = 1, class T>
RNNORM_INLINE void clear_beyond([[maybe_unused]] T* z, [[maybe_unused]] int64_t n,
                                [[maybe_unused]] Units u, [[maybe_unused]] int gates = G) {
#ifdef RNNORM_OWN
  for (int64_t r = 0; r < n; ++r)
    for (int g = 0; g < gates; ++g)
      for (int64_t k = u.count; k < U; ++k) z[(r * G + g) * U + k] = 0;
#endif
}

// the lane sums of the vectors of W rows, each by halves as lane_sum has it
template <int W, class T>
RNNORM_INLINE Vec<T, W> lane_sums(Vec<T, W> (&rows)[W]) {
  using N = typename Lanes<T, W>::bits;
  // blocks of lanes are those of one row, in the order of the rows
#pragma GCC unroll 4
  for (int block = W; block > 1; block /= 2) {
    N low{}, high{};
#pragma GCC unroll 16
    for (int lane = 0; lane < W; ++lane) {
      low[lane] = lane / (block / 2) * block + lane % (block / 2);
      high[lane] = low[lane] + block / 2;
    }
#pragma GCC unroll 16
    for (int r = 0; r < W / 2; ++r)
      if (r < block / 2)
        rows[r] = shuffle<W>(rows[2 * r], rows[2 * r + 1], low) +
                  shuffle<W>(rows[2 * r], rows[2 * r + 1], high);
  }
  return rows[0];
}

// a tile's mean over each row, 0 if it is not `centred`, and the sum of squares about it
template <class R, class T, int U>
void row_moments(const T* x, int64_t n, Units u, bool centred, const Parts<T>& to) {
  constexpr int W = lanes_of<T, U>, C = R::all * U;
  T real[U];
  for (int k = 0; k < U; ++k) real[k] = T(k < u.count);
  const int64_t tile = u.first / tile_units;
  for (int block = R::begin; block < R::end; ++block) {
    const int first = U * R::before(block), last = U * (R::before(block) + R::gates[block]);
    const T count = T(u.count * R::gates[block]);
    T *mean = to.row(tile, block, 0), *squares = to.row(tile, block, 1);
    const auto spread = [&](const T* row, T middle) __attribute__((always_inline)) {
      Vec<T, W> sum{};
      for (int c = first; c < last; c += W) {
        const auto apart = (load<W>(row + c) - middle) * load<W>(real + c % U);
        sum += apart * apart;
      }
      return sum;
    };
    int64_t r = 0;
    // W rows at once, where there are registers for their sums
    if constexpr (W == 16)
      for (; r + W <= n; r += W) {
        Vec<T, W> sums[W] = {};
#pragma GCC unroll 16
        for (int k = 0; k < W; ++k)
          for (int c = first; centred && c < last; c += W) sums[k] += load<W>(x + (r + k) * C + c);
        store<W>(mean + r, lane_sums<W, T>(sums) / count);
#pragma GCC unroll 16
        for (int k = 0; k < W; ++k) sums[k] = spread(x + (r + k) * C, mean[r + k]);
        store<W>(squares + r, lane_sums<W, T>(sums));
      }
    for (; r < n; ++r) {
      Vec<T, W> sum{};
      for (int c = first; centred && c < last; c += W) sum += load<W>(x + r * C + c);
      mean[r] = lane_sum<W, T>(sum) / count;
      squares[r] = lane_sum<W, T>(spread(x + r * C, mean[r]));
    }
  }
}

// merges the tiles' moments, one after the other (Chan et al. 1979), to the mean and
// 1 / sqrt(variance + eps) of each row, [block][row]
template <class R, class T>
void merge_moments(const Parts<T>& parts, const Tiling& tiles, int64_t at, int64_t n, T eps,
                   T* mean, T* inverse) {
  constexpr int W = widest<T>;
  for (int block = R::begin; block < R::end; ++block)
    for (int64_t r = 0; r < n; r += W) {
      Vec<T, W> middle{}, squares{};
      T count = 0;
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const T more = T(tiles[tile].count * R::gates[block]), share = more / (count + more);
        const auto apart = load<W>(parts.row(tile, block, 0) + at + r) - middle;
        middle += apart * share;
        squares += load<W>(parts.row(tile, block, 1) + at + r) + apart * apart * (count * share);
        count += more;
      }
      const int64_t to = block * parts.capacity + r;
      store<W>(mean + to, middle);
      store<W>(inverse + to, inverse_root<W, T>(squares / count + eps));
    }
}

// (x - mean) * inverse, whose blocks are `stride` apart
template <class R, class T, int U>
void standardise(const T* x, int64_t n, const T* mean, const T* inverse, int64_t stride, T* to) {
  constexpr int W = lanes_of<T, U>, C = R::all * U;
  each_row<R, U>(n, [&](int block, int64_t r, int first, int last) {
    const T middle = mean[block * stride + r], spread = inverse[block * stride + r];
    for (int c = first; c < last; c += W)
      store<W>(to + r * C + c, (load<W>(x + r * C + c) - middle) * spread);
  });
}

// a tile's sums over each row of gamma dy, and of gamma dy times the normalised x
template <class R, class T, int U>
void row_gradient_sums(const T* dy, const T* x, const T* gamma, int64_t n, Units u,
                       const Parts<T>& to) {
  constexpr int W = lanes_of<T, U>, C = R::all * U;
  const int64_t tile = u.first / tile_units;
  each_row<R, U>(n, [&](int block, int64_t r, int first, int last) {
    Vec<T, W> sum{}, dot{};
    for (int c = first; c < last; c += W) {
      const auto inward = load<W>(dy + r * C + c) * load<W>(gamma + c);
      sum += inward;
      dot += inward * load<W>(x + r * C + c);
    }
    to.row(tile, block, 0)[r] = lane_sum<W, T>(sum);
    to.row(tile, block, 1)[r] = lane_sum<W, T>(dot);
  });
}

// the tiles' sums as means over a row's features, [block][row]; 0 of gamma dy if not `centred`
template <class R, class T>
void merge_gradient_sums(const Parts<T>& parts, const Tiling& tiles, int64_t n, bool centred,
                         T* sum, T* dot) {
  constexpr int W = widest<T>;
  T* const to[] = {sum, dot};
  for (int block = R::begin; block < R::end; ++block)
    for (int which = 0; which < 2; ++which)
      for (int64_t r = 0; r < n; r += W) {
        Vec<T, W> total{};
        for (int64_t tile = 0; (which || centred) && tile < tiles.count; ++tile)
          total += load<W>(parts.row(tile, block, which) + r);
        store<W>(to[which] + block * parts.capacity + r, total / T(tiles.H * R::gates[block]));
      }
}

// dx = inverse * (gamma dy - mean(gamma dy) - xhat * mean(gamma dy xhat)); the inverse's blocks are
// `stride` apart, those of the means `capacity`
template <class R, class T, int U>
void row_gradient(const T* dy, const T* x, const T* gamma, int64_t n, const T* inverse,
                  int64_t stride, const T* sum, const T* dot, int64_t capacity, T* dx) {
  constexpr int W = lanes_of<T, U>, C = R::all * U;
  each_row<R, U>(n, [&](int block, int64_t r, int first, int last) {
    const T spread = inverse[block * stride + r];
    const T offset = sum[block * capacity + r], slope = dot[block * capacity + r];
    for (int c = first; c < last; c += W) {
      const auto inward = load<W>(dy + r * C + c) * load<W>(gamma + c);
      store<W>(dx + r * C + c, spread * (inward - offset - load<W>(x + r * C + c) * slope));
    }
  });
}

}  // namespace
}  // namespace rnnorm
