// the matrix product: rows of A, any strides, times a packed panel of C columns
#pragma once
#include "vector.h"

namespace rnnorm {
namespace {

// element (r, k) of A is at row(r) + (k / length) * jump + (k % length) * step
template <class T>
struct Rows {
  const T* data;
  int64_t stride;    // from row to row
  int64_t step;      // from k to k + 1
  int64_t segments;  // k runs over segments * length
  int64_t length;
  int64_t jump;
};

constexpr int largest_power(int n, int limit) {
  int w = 1;
  while (w * 2 <= limit && n % (w * 2) == 0) w *= 2;
  return w;
}

// how a panel of C columns is held in registers: R rows x N vectors of W lanes
template <class T, int C>
struct Block {
  static constexpr int W = largest_power(C, widest<T>);
  static constexpr int vectors = C / W;
  static constexpr bool many = RNNORM_VECTOR_BYTES == 64;  // 32 registers, else 16
  static constexpr int N = many ? (vectors % 4 == 0   ? 4
                                   : vectors % 3 == 0 ? 3
                                   : vectors % 2 == 0 ? 2
                                                      : 1)
                                : (vectors % 2 == 0 ? 2 : vectors % 3 == 0 ? 3 : 1);
  static constexpr int R = many ? (N == 4 ? 6 : N == 3 ? 8 : 12) : (N == 1 ? 8 : 12 / N);
};

template <class T, int W, int R, int N>
RNNORM_INLINE void block(const Rows<T>& a, const T* first, const T* panel, int64_t panel_stride,
                         T* c, int64_t c_stride, bool accumulate, const T* ahead) {
  constexpr int line = 64 / int(sizeof(T));
  using V = Vec<T, W>;
  V sum[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v)
      sum[r][v] = accumulate ? load<W>(c + r * c_stride + v * W) : V{};
  for (int64_t s = 0; s < a.segments; ++s) {
    const T* p = first + s * a.jump;
    for (int64_t k = 0; k < a.length; ++k) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += line;
      V b[N];
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) b[v] = load<W>(panel + v * W);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const T value = p[r * a.stride];
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) sum[r][v] += value * b[v];
      }
      p += a.step;
      panel += panel_stride;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) store<W>(c + r * c_stride + v * W, sum[r][v]);
}

template <class T, int W, int R, int N>
RNNORM_INLINE void last_rows(int64_t n, const Rows<T>& a, const T* first, const T* panel,
                             int64_t panel_stride, T* c, int64_t c_stride, bool accumulate,
                             const T* ahead) {
  if constexpr (R > 0) {
    if (n == R)
      block<T, W, R, N>(a, first, panel, panel_stride, c, c_stride, accumulate, ahead);
    else
      last_rows<T, W, R - 1, N>(n, a, first, panel, panel_stride, c, c_stride, accumulate, ahead);
  }
}

// c (n x C) = or += a (n x K) panel (K x C); every element is summed in the order of k
template <class T, int C>
void product(const Rows<T>& a, int64_t n, const T* panel, T* c, int64_t c_stride,
             bool accumulate) {
  using B = Block<T, C>;
  // a last block of one or two rows would wait for the panel: share its rows with the one before
  const int64_t rest = n % B::R;
  const int64_t whole = n - rest - (rest && rest <= B::R / 2 && n > B::R ? B::R : 0);
  // every block asks for some of what lies behind the panel, which is the next one
  const int64_t size = a.segments * a.length * C;
  const T* ahead = panel + size;
  const auto advance = [&] {
    ahead += a.segments * a.length * 64 / int(sizeof(T));
    if (ahead >= panel + 2 * size) ahead = panel;
  };
  for (int column = 0; column < C; column += B::N * B::W) {
    int64_t r = 0;
    for (; r < whole; r += B::R, advance())
      block<T, B::W, B::R, B::N>(a, a.data + r * a.stride, panel + column, C,
                                 c + r * c_stride + column, c_stride, accumulate, ahead);
    while (r < n) {
      const int64_t rows = n - r < B::R ? n - r : (n - r + 1) / 2;
      last_rows<T, B::W, B::R - 1, B::N>(rows, a, a.data + r * a.stride, panel + column, C,
                                         c + r * c_stride + column, c_stride, accumulate, ahead);
      r += rows;
      advance();
    }
  }
}

}  // namespace
}  // namespace rnnorm
