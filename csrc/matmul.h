// the matrix product: rows of A, any strides, times a packed panel of C columns
#pragma once
#include "amx.h"

namespace rnnorm {
namespace {

constexpr int largest_power(int n, int limit) {
  int w = 1;
  while (w * 2 <= limit && n % (w * 2) == 0) w *= 2;
  return w;
}

// the most of 4, 3, 2 and 1 vectors that divides their number
constexpr int vectors_at_once(int vectors) {
  return vectors % 4 == 0 ? 4 : vectors % 3 == 0 ? 3 : vectors % 2 == 0 ? 2 : 1;
}

// how a panel of C columns is held in registers: R rows x N vectors of W lanes
template <class T, int C>
struct Block {
  static constexpr int W = largest_power(C, widest<T>);
  static constexpr int vectors = C / W;
  static constexpr bool many = RNNORM_VECTOR_BYTES == 64;  // 32 registers, else 16
  static constexpr int N = many               ? vectors_at_once(vectors)
                           : vectors % 2 == 0 ? 2
                           : vectors % 3 == 0 ? 3
                                              : 1;
  static constexpr int R = many ? (N == 4 ? 6 : N == 3 ? 8 : 12) : (N == 1 ? 8 : 12 / N);
};

// columns of a panel that lie together: it is packed as [slice][k][columns of a slice]
template <class T, int C>
constexpr int slice = Block<T, C>::N * Block<T, C>::W;

// where element (k, column) of a packed panel of `length` rows lies
template <class T, int C>
RNNORM_INLINE int64_t in_panel(int64_t length, int64_t k, int64_t column) {
  constexpr int S = slice<T, C>;
  return column / S * S * length + k * S + column % S;
}

// c (n x C) = or += a (n x K) panel (K x C); every element is summed in the order of k
template <class T, int C>
class Product {
  using F = Factor<T>;
  using B = Block<T, C>;
  static constexpr int W = B::W, N = B::N, S = slice<T, C>;
  // 29 instructions for 12 multiply-adds are too many for the narrower processors
  static constexpr int unrolled = B::many ? 1 : 4;
  // SSE has no multiply-add: a product takes a register, and unrolled loops keep sums in memory
#if defined(__SSE2__) && !defined(__FMA__)
  static constexpr bool spills = true;
#else
  static constexpr bool spills = false;
#endif
  static constexpr int line = 64 / int(sizeof(F));

 public:
  Product(const RowsOf<T>& a, int64_t n, const F* panel, T* c, int64_t c_stride, bool accumulate,
          const F* next)
      : a(a), size(a.segments * a.length * C), panel(panel), c(c), c_stride(c_stride),
        accumulate(accumulate), next(next), ahead(next),
        lines(!B::many && n < 4 * B::R ? unrolled : 1) {
#ifdef RNNORM_AMX
    if (amx_product<C, S>(a, n, panel, c, c_stride, accumulate)) return;
#endif
    // a last block of one or two rows would wait for the panel: share its rows with the one before
    const int64_t rest = n % B::R;
    const int64_t whole = n - rest - (rest && rest <= B::R / 2 && n > B::R ? B::R : 0);
    int64_t r = 0;
    for (; r < whole; r += B::R) rows<B::R>(r);
    while (r < n) {
      const int64_t count = n - r < B::R ? n - r : (n - r + 1) / 2;
      last_rows<B::R - 1>(count, r);
      r += count;
    }
  }

 private:
  template <int R>
  RNNORM_INLINE void last_rows(int64_t count, int64_t r) {
    if constexpr (R > 0) {
      if (count == R)
        rows<R>(r);
      else
        last_rows<R - 1>(count, r);
    }
  }

  template <int R>
  RNNORM_INLINE void rows(int64_t r) {
    constexpr int together = slices_at_once(R);
    for (int s = 0; s < C / S; s += together) {
      block<R, together>(a.data + r * a.stride, panel + s * (size / C) * S,
                         c + r * c_stride + s * S);
      // every block asks for some of what comes next
      ahead += a.segments * (a.length / unrolled) * lines * line;
      if (ahead >= next + size) ahead = next;
    }
  }

  // few rows take more slices, so that no multiply-add waits for the one before
  static constexpr int slices_at_once(int rows) {
    int most = 1;
    if (!B::many)
      for (int s = 2; s <= C / S; ++s)
        if (C / S % s == 0 && s * N <= 8 && rows * s * N <= 12) most = s;
    return most;
  }

  template <int R, int Slices>
  RNNORM_INLINE void block(const F* first, const F* from, T* to) const {
    using V = Vec<T, W>;
    constexpr int M = Slices * N;
    const int64_t apart = size / C * S;
    const F* ask = ahead;
    V sum[R][M];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < M; ++v)
        sum[r][v] = accumulate ? load<W>(to + r * c_stride + v * W) : V{};
    const auto add = [&](const F* p, const F* b_at) __attribute__((always_inline)) {
      Vec<F, W> b[M];
#pragma GCC unroll 8
      for (int v = 0; v < M; ++v) b[v] = load<W>(b_at + v / N * apart + v % N * W);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const F value = load_factor(p + r * a.stride);
#pragma GCC unroll 8
        for (int v = 0; v < M; ++v) sum[r][v] = add_product<W>(sum[r][v], value, b[v]);
      }
    };
    for (int64_t s = 0; s < a.segments; ++s) {
      const F* p = first + s * a.jump;
      int64_t k = 0;
      for (; k + unrolled <= a.length; k += unrolled) {
        const int64_t asked = B::many ? 1 : lines;
        for (int64_t l = 0; l < asked; ++l, ask += line) __builtin_prefetch(ask, 0, 2);
        if constexpr (spills && R > 4) {
#pragma GCC unroll 1
          for (int j = 0; j < unrolled; ++j, p += a.step, from += S) add(p, from);
        } else {
#pragma GCC unroll 4
          for (int j = 0; j < unrolled; ++j, p += a.step, from += S) add(p, from);
        }
      }
      for (; k < a.length; ++k, p += a.step, from += S) add(p, from);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < M; ++v) store<W>(to + r * c_stride + v * W, sum[r][v]);
  }

  const RowsOf<T> a;
  const int64_t size;
  const F* const panel;
  T* const c;
  const int64_t c_stride;
  const bool accumulate;
  const F *const next, *ahead;
  const int64_t lines;
};

// c (n x C) = or += a panel, while `next`, or if null what follows the panel, is prefetched
template <class T, int C>
void product(const RowsOf<T>& a, int64_t n, const Factor<T>* panel, T* c, int64_t c_stride,
             bool accumulate, const Factor<T>* next = nullptr) {
  Product<T, C>(a, n, panel, c, c_stride, accumulate,
                next ? next : panel + a.segments * a.length * C);
}

// c (R x J) = or += R rows of a (. x K) times J rows of an unpacked weight, transposed; an element's
// sum has the same order whatever R and J are
template <class T, int R, int J>
RNNORM_INLINE void dot_products(const Stored<T>* a, int64_t a_stride, const Stored<T>* w, int64_t K,
                                T* c, int64_t c_stride, bool accumulate) {
  constexpr int W = widest<T>, N = R * J, together = W * per_factor;
  using F = Factor<T>;
  Vec<T, W> sum[N] = {};
  int64_t k = 0;
  for (; k + together <= K; k += together) {
    Vec<F, W> x[R];
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) x[r] = load<W>(reinterpret_cast<const F*>(a + r * a_stride + k));
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      const Vec<F, W> row = load<W>(reinterpret_cast<const F*>(w + j * K + k));
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) sum[r * J + j] = add_product<W>(sum[r * J + j], x[r], row);
    }
  }
  T lanes[N * W], total[N];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < J; ++j) total[r * J + j] = accumulate ? c[r * c_stride + j] : T(0);
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) store<W>(lanes + i * W, sum[i]);
  if constexpr (N % W == 0) {
    for (int i = 0; i < N; i += W) {
      transpose<W>(lanes + i * W, W, lanes + i * W, W);
      Vec<T, W> all = load<W>(total + i);
#pragma GCC unroll 16
      for (int lane = 0; lane < W; ++lane) all += load<W>(lanes + (i + lane) * W);
      store<W>(total + i, all);
    }
  } else {
    for (int i = 0; i < N; ++i)
      for (int lane = 0; lane < W; ++lane) total[i] += lanes[i * W + lane];
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < J; ++j) {
      for (int64_t rest = k; rest < K; ++rest)
        total[r * J + j] += widened(a[r * a_stride + rest]) * widened(w[j * K + rest]);
      c[r * c_stride + j] = total[r * J + j];
    }
}

// the same for any number of rows of a and of the weight: where packing it would cost more than the
// product
template <class T>
void unpacked_product(const Stored<T>* a, int64_t a_stride, int64_t n, const Stored<T>* w,
                      int64_t count, int64_t K, T* c, int64_t c_stride, bool accumulate) {
  // as many sums as are added up across their lanes at once
  constexpr int N = widest<T> > 8 ? widest<T> : 8, J = N / 2;
  int64_t j = 0;
  for (; j + N <= count; j += N) {
    int64_t r = 0;
    for (; r + 2 <= n; r += 2)
      for (int half = 0; half < N; half += J)
        dot_products<T, 2, J>(a + r * a_stride, a_stride, w + (j + half) * K, K,
                              c + r * c_stride + j + half, c_stride, accumulate);
    if (r < n)
      dot_products<T, 1, N>(a + r * a_stride, a_stride, w + j * K, K, c + r * c_stride + j,
                            c_stride, accumulate);
  }
  for (; j < count; ++j)
    for (int64_t r = 0; r < n; ++r)
      dot_products<T, 1, 1>(a + r * a_stride, a_stride, w + j * K, K, c + r * c_stride + j,
                            c_stride, accumulate);
}

}  // namespace
}  // namespace rnnorm
