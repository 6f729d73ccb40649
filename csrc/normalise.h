// batch normalisation of a tile of n rows x C columns, forward and backward
#pragma once
#include "matmul.h"

namespace rnnorm {
namespace {

// y = (x - mean) * scale + shift = x * scale + offset with scale = gamma * inverse; the rows'
// statistics are `row` elements apart, or 0 if they share them
template <class T>
struct Affine {
  const T *mean, *inverse, *scale, *offset;
  int64_t row;
};

// partial sums over this many rows are added up, so that long columns lose no precision
constexpr int64_t partial_rows = 256;

// total[c] = sum over rows of term(row, column of c), C columns in groups held in registers
template <class T, int C, int Outputs, class Term>
RNNORM_INLINE void column_sums(int64_t n, T* const (&total)[Outputs], Term term) {
  constexpr int W = Block<T, C>::W;
  constexpr int N = vectors_at_once(C / W);
  using V = Vec<T, W>;
  for (int column = 0; column < C; column += N * W) {
    V sum[Outputs][N] = {};
    for (int64_t start = 0; start < n; start += partial_rows) {
      const int64_t stop = start + partial_rows < n ? start + partial_rows : n;
      V partial[Outputs][N] = {};
      for (int64_t r = start; r < stop; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) {
          V value[Outputs];
          term(r, column + v * W, value);
#pragma GCC unroll 2
          for (int o = 0; o < Outputs; ++o) partial[o][v] += value[o];
        }
      for (int o = 0; o < Outputs; ++o)
        for (int v = 0; v < N; ++v) sum[o][v] += partial[o][v];
    }
    for (int o = 0; o < Outputs; ++o)
      for (int v = 0; v < N; ++v) store<W>(total[o] + column + v * W, sum[o][v]);
  }
}

// mean, and sum of squares about it, in two passes; zeros without rows. Here and below rows are
// Stride apart
template <class T, int C, int Stride = C>
void moments(const T* x, int64_t n, T* mean, T* squares) {
  constexpr int W = Block<T, C>::W;
  using V = Vec<T, W>;
  T* const to_mean[1] = {mean};
  column_sums<T, C, 1>(n, to_mean,
                       [&](int64_t r, int c, V* value) { value[0] = load<W>(x + r * Stride + c); });
  for (int c = 0; c < C; ++c) mean[c] /= T(n ? n : 1);
  T* const to_squares[1] = {squares};
  column_sums<T, C, 1>(n, to_squares, [&](int64_t r, int c, V* value) {
    const V centred = load<W>(x + r * Stride + c) - load<W>(mean + c);
    value[0] = centred * centred;
  });
}

// sum of dy, and of dy times the normalised x
template <class T, int C, int Stride = C>
void gradient_sums(const T* dy, const T* x, const Affine<T>& by, int64_t n, T* sum, T* dot) {
  constexpr int W = Block<T, C>::W;
  using V = Vec<T, W>;
  T* const to[2] = {sum, dot};
  if (by.row) {
    column_sums<T, C, 2>(n, to, [&](int64_t r, int c, V* value) {
      const int64_t at = r * by.row + c;
      value[0] = load<W>(dy + r * Stride + c);
      value[1] = value[0] * ((load<W>(x + r * Stride + c) - load<W>(by.mean + at)) *
                             load<W>(by.inverse + at));
    });
    return;
  }
  column_sums<T, C, 2>(n, to, [&](int64_t r, int c, V* value) {
    value[0] = load<W>(dy + r * Stride + c);
    value[1] = value[0] * (load<W>(x + r * Stride + c) - load<W>(by.mean + c));
  });
  for (int c = 0; c < C; ++c) dot[c] *= by.inverse[c];
}

template <class T, int C, int Stride = C>
void plain_sums(const T* dy, int64_t n, T* sum) {
  constexpr int W = Block<T, C>::W;
  T* const to[1] = {sum};
  column_sums<T, C, 1>(
      n, to,
      [&](int64_t r, int c, Vec<T, W>* value) { value[0] = load<W>(dy + r * Stride + c); });
}

// dx = scale * (dy - mean(dy) - xhat * mean(dy * xhat)) where the statistics are of `all` rows,
// these among them, and so are the sums
template <class T, int C, int Stride = C>
void batch_gradient(const T* dy, const T* x, const Affine<T>& by, int64_t n, int64_t all,
                    const T* sum, const T* dot, T* dx) {
  constexpr int W = Block<T, C>::W;
  constexpr int N = vectors_at_once(C / W);
  using V = Vec<T, W>;
  for (int column = 0; column < C; column += N * W) {
    V offset[N], slope[N], scale[N];
    for (int v = 0; v < N; ++v) {
      const int c = column + v * W;
      slope[v] = load<W>(dot + c) * load<W>(by.inverse + c) / T(all);
      offset[v] = load<W>(sum + c) / T(all) - load<W>(by.mean + c) * slope[v];
      scale[v] = load<W>(by.scale + c);
    }
    for (int64_t r = 0; r < n; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) {
        const int64_t at = r * Stride + column + v * W;
        store<W>(dx + at,
                 scale[v] * (load<W>(dy + at) - offset[v] - load<W>(x + at) * slope[v]));
      }
  }
}

// dx = scale * dy where they are constants
template <class T, int C, int Stride = C>
void constant_gradient(const T* dy, const Affine<T>& by, int64_t n, T* dx) {
  constexpr int W = Block<T, C>::W;
  for (int64_t r = 0; r < n; ++r)
    for (int c = 0; c < C; c += W)
      store<W>(dx + r * Stride + c,
               load<W>(dy + r * Stride + c) * load<W>(by.scale + r * by.row + c));
}

}  // namespace
}  // namespace rnnorm
