// the cells' equations on a tile of U hidden units, forward and backward
#pragma once
#include "normalise.h"
#include "rows.h"

namespace rnnorm {
namespace {

// a raw product and what turns it into a term of the equations
template <class T>
struct Term {
  const T* raw;
  Affine<T> by;
  const T* next;  // the raw product that is read after this one, or null
};

// one tile at one step; tiles are [row][column] with columns gate after gate, U each
template <class T>
struct Step {
  int64_t n;      // active rows
  int64_t units;  // of the U that exist
  Term<T> x, h, cell;
  const T *h_before, *c_before;
  T *h_after, *c_after;
  int64_t h_stride;  // h is in rows of the whole layer
  T* gate;           // scratch, n x U: what the second half of the step still needs

  const T* grad_output;       // rows h_stride apart, or null
  const T* next_grad_output;  // the rows that are read after these, or null
  T* grad_h;             // rows grad_h_stride apart: in dh from the next step, out what skips W_h
  int64_t grad_h_stride;
  T* grad_c;     // n x U: in from the next step, out for the one before
  T* grad_cell;  // n x U: of the normalised c, then of c through it
  T *grad_zx, *grad_zh;
};

template <class T, int U>
struct Tile {
  static constexpr int W = U < widest<T> ? U : widest<T>;
  using V = Vec<T, W>;

  // body(row, first unit of a vector) over the tile
  template <class Body>
  static RNNORM_INLINE void each(int64_t rows, Body body) {
    for (int u = 0; u < U; u += W)
      for (int64_t r = 0; r < rows; ++r) body(r, u);
  }

  template <int C>
  static RNNORM_INLINE V term(const Term<T>& z, int64_t row, int column) {
    const int64_t at = row * z.by.row + column;
    return load<W>(z.raw + row * C + column) * load<W>(z.by.scale + at) + load<W>(z.by.offset + at);
  }

  // W_x x + W_h h, or the one array that holds their sum
  template <int C, bool Fused>
  static RNNORM_INLINE V both(const Step<T>& s, int64_t row, int column) {
    const V z = term<C>(s.h, row, column);
    return Fused ? z : z + term<C>(s.x, row, column);
  }

  // asks for what the next tile needs while this one is computed
  template <int C>
  static RNNORM_INLINE void fetch(const Term<T>& z, int64_t row, int column) {
    if (!z.next) return;
    constexpr int line = 64 / int(sizeof(T));
    for (int c = column * (C / U); c < (column + W) * (C / U); c += line)
      __builtin_prefetch(z.next + row * C + c, 1, 2);
  }

  static RNNORM_INLINE V grad_output(const Step<T>& s, int64_t row, int column) {
    const V dh = load<W>(s.grad_h + row * s.grad_h_stride + column);
    if (!s.grad_output) return dh;
    if (s.next_grad_output) __builtin_prefetch(s.next_grad_output + row * s.h_stride + column);
    return dh + load_some<W>(s.grad_output + row * s.h_stride + column, s.units - column);
  }
};

struct Lstm {
  static constexpr int gates = 4;
  static constexpr bool has_cell = true;
  static constexpr bool separate = false;  // whether dz differs between the two products
  static constexpr bool skips = false;     // whether h passes a step without W_h
  using Rows = Blocks<4>;

  // c = f c + i tanh(g)
  template <class T, int U, bool Fused>
  static void forward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 4 * U;
    L::each(s.n, [&](int64_t r, int u) {
      L::template fetch<C>(s.h, r, u);
      L::template fetch<C>(s.x, r, u);
      const auto i = sigmoid<W, T>(L::template both<C, Fused>(s, r, u));
      const auto f = sigmoid<W, T>(L::template both<C, Fused>(s, r, U + u));
      const auto g = hyperbolic_tangent<W>(L::template both<C, Fused>(s, r, 2 * U + u));
      const auto o = sigmoid<W, T>(L::template both<C, Fused>(s, r, 3 * U + u));
      store<W>(s.c_after + r * U + u, f * load<W>(s.c_before + r * U + u) + i * g);
      store<W>(s.gate + r * U + u, o);
    });
  }

  // h = o tanh(BN(c))
  template <class T, int U>
  static void output(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W;
    L::each(s.n, [&](int64_t r, int u) {
      const auto y = hyperbolic_tangent<W>(L::template term<U>(s.cell, r, u));
      store_some<W, T>(s.h_after + r * s.h_stride + u, load<W>(s.gate + r * U + u) * y,
                       s.units - u);
    });
  }

  // down to the normalised c; leaves dz_o, and for the other gates dz / dc
  template <class T, int U, bool Fused>
  static void output_backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 4 * U;
    L::each(s.n, [&](int64_t r, int u) {
      L::template fetch<C>(s.h, r, u);
      L::template fetch<C>(s.x, r, u);
      const auto i = sigmoid<W, T>(L::template both<C, Fused>(s, r, u));
      const auto f = sigmoid<W, T>(L::template both<C, Fused>(s, r, U + u));
      const auto g = hyperbolic_tangent<W>(L::template both<C, Fused>(s, r, 2 * U + u));
      const auto o = sigmoid<W, T>(L::template both<C, Fused>(s, r, 3 * U + u));
      L::template fetch<U>(s.cell, r, u);
      const auto y = hyperbolic_tangent<W>(L::template term<U>(s.cell, r, u));
      const auto dh = L::grad_output(s, r, u);
      T* dz = s.grad_zh + r * C + u;
      store<W>(dz, g * i * (T(1) - i));
      store<W>(dz + U, load<W>(s.c_before + r * U + u) * f * (T(1) - f));
      store<W>(dz + 2 * U, i * (T(1) - g * g));
      store<W>(dz + 3 * U, dh * y * o * (T(1) - o));
      store<W>(s.gate + r * U + u, f);
      store<W>(s.grad_cell + r * U + u, dh * o * (T(1) - y * y));
    });
  }

  template <class T, int U, bool Fused>
  static void backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 4 * U;
    L::each(s.n, [&](int64_t r, int u) {
      const auto dc = load<W>(s.grad_c + r * U + u) + load<W>(s.grad_cell + r * U + u);
      T* dz = s.grad_zh + r * C + u;
      store<W>(dz, dc * load<W>(dz));
      store<W>(dz + U, dc * load<W>(dz + U));
      store<W>(dz + 2 * U, dc * load<W>(dz + 2 * U));
      store<W>(s.grad_c + r * U + u, dc * load<W>(s.gate + r * U + u));
    });
  }
};

struct Gru {
  static constexpr int gates = 3;
  static constexpr bool has_cell = false;
  static constexpr bool separate = true;
  static constexpr bool skips = true;
  using Rows = Blocks<2, 1>;

  // h = (1 - z) n + z h, n = tanh(x_n + r h_n)
  template <class T, int U, bool Fused>
  static void forward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 3 * U;
    L::each(s.n, [&](int64_t b, int u) {
      L::template fetch<C>(s.h, b, u);
      L::template fetch<C>(s.x, b, u);
      const auto r = sigmoid<W, T>(L::template both<C, false>(s, b, u));
      const auto z = sigmoid<W, T>(L::template both<C, false>(s, b, U + u));
      const auto n = hyperbolic_tangent<W>(L::template term<C>(s.x, b, 2 * U + u) +
                                           r * L::template term<C>(s.h, b, 2 * U + u));
      const auto h = load_some<W>(s.h_before + b * s.h_stride + u, s.units - u);
      store_some<W, T>(s.h_after + b * s.h_stride + u, n + z * (h - n), s.units - u);
    });
  }

  template <class T, int U, bool Fused>
  static void backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 3 * U;
    L::each(s.n, [&](int64_t b, int u) {
      L::template fetch<C>(s.h, b, u);
      L::template fetch<C>(s.x, b, u);
      const auto r = sigmoid<W, T>(L::template both<C, false>(s, b, u));
      const auto z = sigmoid<W, T>(L::template both<C, false>(s, b, U + u));
      const auto h_n = L::template term<C>(s.h, b, 2 * U + u);
      const auto n = hyperbolic_tangent<W>(L::template term<C>(s.x, b, 2 * U + u) + r * h_n);
      const auto h = load_some<W>(s.h_before + b * s.h_stride + u, s.units - u);
      const auto dh = L::grad_output(s, b, u);
      const auto dn = dh * (T(1) - z) * (T(1) - n * n);
      const auto dz = dh * (h - n) * z * (T(1) - z);
      const auto dr = dn * h_n * r * (T(1) - r);
      T *dx = s.grad_zx + b * C + u, *dr_h = s.grad_zh + b * C + u;
      store<W>(dx, dr);
      store<W>(dx + U, dz);
      store<W>(dx + 2 * U, dn);
      store<W>(dr_h, dr);
      store<W>(dr_h + U, dz);
      store<W>(dr_h + 2 * U, dn * r);
      store<W>(s.grad_h + b * s.grad_h_stride + u, dh * z);
    });
  }
};

// h = tanh or max(0, .) of the sum
template <bool Rectifier>
struct Rnn {
  static constexpr int gates = 1;
  static constexpr bool has_cell = false;
  static constexpr bool separate = false;
  static constexpr bool skips = false;
  using Rows = Blocks<1>;

  template <class T, int U, bool Fused>
  static void forward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W;
    L::each(s.n, [&](int64_t r, int u) {
      auto h = L::template both<U, Fused>(s, r, u);
      if constexpr (Rectifier)
        h = h < T(0) ? Vec<T, W>{} : h;
      else
        h = hyperbolic_tangent<W>(h);
      store_some<W, T>(s.h_after + r * s.h_stride + u, h, s.units - u);
    });
  }

  template <class T, int U, bool Fused>
  static void backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W;
    L::each(s.n, [&](int64_t r, int u) {
      const auto h = load_some<W>(s.h_after + r * s.h_stride + u, s.units - u);
      auto dz = L::grad_output(s, r, u);
      if constexpr (Rectifier)
        dz = h > T(0) ? dz : Vec<T, W>{};
      else
        dz = dz * (T(1) - h * h);
      store<W>(s.grad_zh + r * U + u, dz);
    });
  }
};

}  // namespace
}  // namespace rnnorm
