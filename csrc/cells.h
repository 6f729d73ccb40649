// the cells' equations on a tile of U hidden units, forward and backward; `Extra` are peepholes and
// recurrent dropout, any of which may be missing
#pragma once
#include "rows.h"
#include "step.h"

namespace rnnorm {
namespace {

template <int W, class T>
RNNORM_INLINE Vec<T, W> rectifier(Vec<T, W> z) {
  return z < T(0) ? Vec<T, W>{} : z;
}
// a gradient at NaN stays, as torch has it
template <int W, class T>
RNNORM_INLINE Vec<T, W> rectifier_gradient(Vec<T, W> y, Vec<T, W> dy) {
  return y <= T(0) ? Vec<T, W>{} : dy;
}

struct Lstm {
  static constexpr int gates = 4;
  static constexpr int states = 1;            // beside h
  static constexpr bool has_cell = true;      // whether the cell site normalises the first of these
  static constexpr bool separate = false;     // whether dz differs between the two products
  static constexpr bool skips = false;        // whether h passes a step without W_h
  static constexpr bool independent = false;  // whether W_h is a vector: W_h h is w * h
  using Rows = Blocks<4>;

  // the sum within a gate, with its peephole's part
  template <class T, int U, bool Fused, bool Extra, class V>
  static RNNORM_INLINE V sum(const Step<T>& s, int64_t r, int u, int gate, int peephole, V c) {
    using L = Tile<T, U>;
    const V z = L::template both<4 * U, Fused>(s, r, gate * U + u);
    const T* weight = Extra ? s.peephole[peephole] : nullptr;
    return weight ? z + load<L::W>(weight + u) * c : z;
  }

  // c = f c + i tanh(g)
  template <class T, int U, bool Fused, bool Extra>
  static void forward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 4 * U;
    L::each(s.n, [&](int64_t r, int u) {
      L::template fetch<C>(s.h, r, u);
      L::template fetch<C>(s.x, r, u);
      const auto before = load<W>(s.state[0].before + r * U + u);
      const auto i = sigmoid<W, T>(sum<T, U, Fused, Extra>(s, r, u, 0, RNNORM_PEEPHOLE_I, before));
      const auto f = sigmoid<W, T>(sum<T, U, Fused, Extra>(s, r, u, 1, RNNORM_PEEPHOLE_F, before));
      auto g = hyperbolic_tangent<W>(L::template both<C, Fused>(s, r, 2 * U + u));
      if (Extra) g *= L::drawn(s.candidate, s, r, u, T(1));
      const auto c = f * before + i * g;
      const auto o = sigmoid<W, T>(sum<T, U, Fused, Extra>(s, r, u, 3, RNNORM_PEEPHOLE_O, c));
      store<W>(s.state[0].after + r * U + u, c);
      store<W>(s.gate + r * U + u, o);
    });
  }

  // h = o tanh(BN(c))
  template <class T, int U, bool Extra>
  static void output(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W;
    L::each(s.n, [&](int64_t r, int u) {
      const auto normal = L::template term<U>(s.cell, r, u);
      const auto y = hyperbolic_tangent<W>(normal);
      auto h = load<W>(s.gate + r * U + u) * y;
      if (Extra) {
        h = L::zone_h(s, r, u, h);
        if (s.carry || s.state[0].zone.drawn) {
          const auto c = s.carry ? normal : load<W>(s.state[0].after + r * U + u);
          const auto before = load<W>(s.state[0].before + r * U + u);
          store<W>(s.state[0].carried + r * U + u, L::mix(L::drawn(s.state[0].zone, s, r, u, T(0)), before, c));
        }
      }
      store_some<W, T>(s.h_after + r * s.h_stride + u, h, s.units - u);
    });
  }

  // the gradient up to the normalised c; leaves dz_o, and for the other gates dz / dc
  template <class T, int U, bool Fused, bool Extra>
  static void output_backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 4 * U;
    L::each(s.n, [&](int64_t r, int u) {
      L::template fetch<C>(s.h, r, u);
      L::template fetch<C>(s.x, r, u);
      const auto before = load<W>(s.state[0].before + r * U + u), c = load<W>(s.state[0].after + r * U + u);
      const auto i = sigmoid<W, T>(sum<T, U, Fused, Extra>(s, r, u, 0, RNNORM_PEEPHOLE_I, before));
      const auto f = sigmoid<W, T>(sum<T, U, Fused, Extra>(s, r, u, 1, RNNORM_PEEPHOLE_F, before));
      const auto g = hyperbolic_tangent<W>(L::template both<C, Fused>(s, r, 2 * U + u));
      const auto o = sigmoid<W, T>(sum<T, U, Fused, Extra>(s, r, u, 3, RNNORM_PEEPHOLE_O, c));
      L::template fetch<U>(s.cell, r, u);
      const auto y = hyperbolic_tangent<W>(L::template term<U>(s.cell, r, u));
      const auto dh = L::template grad_output<Extra>(s, r, u);
      auto into_i = g * i * (T(1) - i), into_g = i * (T(1) - g * g);
      if (Extra) {
        const auto kept = L::drawn(s.candidate, s, r, u, T(1));
        into_i *= kept;
        into_g *= kept;
      }
      T* dz = s.grad_zh + r * C + u;
      store<W>(dz, into_i);
      store<W>(dz + U, before * f * (T(1) - f));
      store<W>(dz + 2 * U, into_g);
      store<W>(dz + 3 * U, dh * y * o * (T(1) - o));
      store<W>(s.gate + r * U + u, f);
      auto into_cell = dh * o * (T(1) - y * y);
      if (Extra && s.carry) {
        const auto carried = load<W>(s.state[0].grad + r * U + u);
        into_cell += carried - carried * L::drawn(s.state[0].zone, s, r, u, T(0));
      }
      store<W>(s.grad_cell + r * U + u, into_cell);
    });
  }

  template <class T, int U, bool Fused, bool Extra>
  static void backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 4 * U;
    L::each(s.n, [&](int64_t r, int u) {
      T* dz = s.grad_zh + r * C + u;
      const auto carried = load<W>(s.state[0].grad + r * U + u);
      const auto stays = Extra ? carried * L::drawn(s.state[0].zone, s, r, u, T(0)) : carried;
      auto dc = load<W>(s.grad_cell + r * U + u);
      if (!Extra || !s.carry) dc += Extra ? carried - stays : carried;
      if (const T* weight = Extra ? s.peephole[RNNORM_PEEPHOLE_O] : nullptr)
        dc += load<W>(weight + u) * load<W>(dz + 3 * U);
      const auto dz_i = dc * load<W>(dz), dz_f = dc * load<W>(dz + U);
      auto before = dc * load<W>(s.gate + r * U + u);
      if (Extra) before += stays;
      if (const T* weight = Extra ? s.peephole[RNNORM_PEEPHOLE_I] : nullptr)
        before += load<W>(weight + u) * dz_i;
      if (const T* weight = Extra ? s.peephole[RNNORM_PEEPHOLE_F] : nullptr)
        before += load<W>(weight + u) * dz_f;
      store<W>(dz, dz_i);
      store<W>(dz + U, dz_f);
      store<W>(dz + 2 * U, dc * load<W>(dz + 2 * U));
      store<W>(s.state[0].grad + r * U + u, before);
    });
  }
};

// the reset gate multiplies the candidate's recurrent term, or Both of its terms
template <bool Both>
struct Gru {
  static constexpr int gates = 3;
  static constexpr int states = 0;
  static constexpr bool has_cell = false;
  static constexpr bool separate = !Both;
  static constexpr bool skips = true;
  static constexpr bool independent = false;
  using Rows = Blocks<2, 1>;

  // what the reset gate multiplies, and the candidate's sum with that
  template <class T, int U, bool Fused>
  static RNNORM_INLINE auto gated(const Step<T>& s, int64_t b, int u) {
    using L = Tile<T, U>;
    if constexpr (Both)
      return L::template both<3 * U, Fused>(s, b, 2 * U + u);
    else
      return L::template term<3 * U>(s.h, b, 2 * U + u);
  }
  template <class T, int U, class V>
  static RNNORM_INLINE V sum(const Step<T>& s, int64_t b, int u, V r, V gated) {
    return Both ? r * gated : Tile<T, U>::template term<3 * U>(s.x, b, 2 * U + u) + r * gated;
  }

  // h = (1 - z) n + z h, n = tanh(x_n + r h_n) or tanh(r (x_n + h_n))
  template <class T, int U, bool Fused, bool Extra>
  static void forward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 3 * U;
    L::each(s.n, [&](int64_t b, int u) {
      L::template fetch<C>(s.h, b, u);
      L::template fetch<C>(s.x, b, u);
      const auto r = sigmoid<W, T>(L::template both<C, Both && Fused>(s, b, u));
      const auto z = sigmoid<W, T>(L::template both<C, Both && Fused>(s, b, U + u));
      const auto n = hyperbolic_tangent<W>(sum<T, U>(s, b, u, r, gated<T, U, Fused>(s, b, u)));
      L::template interpolate<Extra>(s, b, u, n, z);
    });
  }

  template <class T, int U, bool Fused, bool Extra>
  static void backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 3 * U;
    L::each(s.n, [&](int64_t b, int u) {
      L::template fetch<C>(s.h, b, u);
      L::template fetch<C>(s.x, b, u);
      const auto r = sigmoid<W, T>(L::template both<C, Both && Fused>(s, b, u));
      const auto z = sigmoid<W, T>(L::template both<C, Both && Fused>(s, b, U + u));
      const auto h_n = gated<T, U, Fused>(s, b, u);
      const auto n = hyperbolic_tangent<W>(sum<T, U>(s, b, u, r, h_n));
      const auto [into_n, dz] = L::template interpolation<Extra>(s, b, u, n, z);
      const auto dn = into_n * (T(1) - n * n), dr = dn * h_n * r * (T(1) - r);
      T *dx = s.grad_zx + b * C + u, *dr_h = s.grad_zh + b * C + u;
      if (!Both) {
        store<W>(dx, dr);
        store<W>(dx + U, dz);
        store<W>(dx + 2 * U, dn);
      }
      store<W>(dr_h, dr);
      store<W>(dr_h + U, dz);
      store<W>(dr_h + 2 * U, dn * r);
    });
  }
};

// h = (1 - z) n + z h, n = max(0, .)
struct LiGru {
  static constexpr int gates = 2;
  static constexpr int states = 0;
  static constexpr bool has_cell = false;
  static constexpr bool separate = false;
  static constexpr bool skips = true;
  static constexpr bool independent = false;
  using Rows = Blocks<2>;

  template <class T, int U, bool Fused, bool Extra>
  static void forward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 2 * U;
    L::each(s.n, [&](int64_t b, int u) {
      L::template fetch<C>(s.h, b, u);
      L::template fetch<C>(s.x, b, u);
      const auto z = sigmoid<W, T>(L::template both<C, Fused>(s, b, u));
      const auto n = rectifier<W, T>(L::template both<C, Fused>(s, b, U + u));
      L::template interpolate<Extra>(s, b, u, n, z);
    });
  }

  template <class T, int U, bool Fused, bool Extra>
  static void backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W, C = 2 * U;
    L::each(s.n, [&](int64_t b, int u) {
      L::template fetch<C>(s.h, b, u);
      L::template fetch<C>(s.x, b, u);
      const auto z = sigmoid<W, T>(L::template both<C, Fused>(s, b, u));
      const auto n = rectifier<W, T>(L::template both<C, Fused>(s, b, U + u));
      const auto [into_n, dz] = L::template interpolation<Extra>(s, b, u, n, z);
      T* to = s.grad_zh + b * C + u;
      store<W>(to, dz);
      store<W>(to + U, rectifier_gradient<W, T>(n, into_n));
    });
  }
};

// h = tanh or max(0, .) of the sum; if Independent, each unit sees of h itself alone
template <bool Rectifier, bool Independent = false>
struct Rnn {
  static constexpr int gates = 1;
  static constexpr int states = 0;
  static constexpr bool has_cell = false;
  static constexpr bool separate = false;
  static constexpr bool skips = false;
  static constexpr bool independent = Independent;
  using Rows = Blocks<1>;

  template <int W, class T, class V>
  static RNNORM_INLINE V activation(V z) {
    if constexpr (Rectifier)
      return rectifier<W, T>(z);
    else
      return hyperbolic_tangent<W>(z);
  }

  template <class T, int U, bool Fused, bool Extra>
  static void forward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W;
    L::each(s.n, [&](int64_t r, int u) {
      auto h = activation<W, T>(L::template both<U, Fused>(s, r, u));
      if (Extra) h = L::zone_h(s, r, u, h);
      store_some<W, T>(s.h_after + r * s.h_stride + u, h, s.units - u);
    });
  }

  template <class T, int U, bool Fused, bool Extra>
  static void backward(const Step<T>& s) {
    using L = Tile<T, U>;
    constexpr int W = L::W;
    L::each(s.n, [&](int64_t r, int u) {
      // after zoneout the cell's own h is not stored, so it is computed again
      const auto h = Extra ? activation<W, T>(L::template both<U, Fused>(s, r, u))
                           : load_some<W>(s.h_after + r * s.h_stride + u, s.units - u);
      auto dz = L::template grad_output<Extra>(s, r, u);
      if constexpr (Rectifier)
        dz = rectifier_gradient<W, T>(h, dz);
      else
        dz = dz * (T(1) - h * h);
      store<W>(s.grad_zh + r * U + u, dz);
    });
  }
};

}  // namespace
}  // namespace rnnorm
