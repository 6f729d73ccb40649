// the data of a cell's equations: one tile of U hidden units at one step
#pragma once
#include "layer.h"
#include "normalise.h"

namespace rnnorm {
namespace {

// a raw product, and the normalisation that makes it a term of the equations
template <class T>
struct Term {
  const T* raw;
  Affine<T> by;
  const T* next;  // the raw product that is read next, for prefetching, or null
};

// recurrent dropout of a tile's units at one step
template <class T>
struct Mask {
  const uint8_t* drawn;  // null where nothing is dropped
  int64_t row;
  T scale;
};

// the most states of a cell beside h
constexpr int most_states = 3;

// a state beside h, tiles of n x U
template <class T>
struct State {
  const T* before;    // zeros in rows that begin anew
  T *after, *carried;  // the new state, and what the next step reads: another of the first alone
  T* grad;            // in: gradient from the next step; out: that for the step before
  Mask<T> zone;       // of the first alone
};

// one tile at one step; tiles are [row][column] with columns gate after gate, U each
template <class T>
struct Step {
  int64_t n;      // active rows
  int64_t units;  // number of the U units that exist
  Term<T> x, h, cell;
  const T* h_before;        // zeros in rows that begin anew
  int64_t h_before_stride;  // from row to row of h_before
  T* h_after;
  int64_t h_stride;  // from row to row of h, which has all units of the layer
  State<T> state[most_states];
  const T* peephole[RNNORM_PEEPHOLES];  // weights of the units, or null
  Mask<T> candidate, zone_h;
  bool carry;  // the next step reads the normalised first state
  T* gate;  // scratch, n x U: kept for the second half of the step

  const T* grad_output;       // rows h_stride apart, or null
  const T* next_grad_output;  // the rows that are read next, for prefetching, or null
  T* grad_h;             // in: dh from the next step; out: the part of dh that skips W_h
  int64_t grad_h_stride;
  T* grad_cell;  // n x U: gradient of the normalised state, then its part of that of the state
  T *grad_zx, *grad_zh;
};

template <class T, int U>
struct Tile {
  static constexpr int W = U < widest<T> ? U : widest<T>;
  using V = Vec<T, W>;

  // calls body(row, first unit of a vector) over the tile
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

  // the mask of a vector of units, or `otherwise` without a mask
  static RNNORM_INLINE V drawn(const Mask<T>& mask, const Step<T>& s, int64_t row, int column,
                               T otherwise) {
    if (!mask.drawn) return all<W>(otherwise);
    return from_bytes<W, T>(mask.drawn + row * mask.row + column, s.units - column) * mask.scale;
  }

  // a state whose units in `kept` are those of the step before
  static RNNORM_INLINE V mix(V kept, V before, V fresh) {
    return kept * before + (T(1) - kept) * fresh;
  }
  static RNNORM_INLINE V zone_h(const Step<T>& s, int64_t row, int column, V fresh) {
    if (!s.zone_h.drawn) return fresh;
    const V before = load_some<W>(s.h_before + row * s.h_before_stride + column, s.units - column);
    return mix(drawn(s.zone_h, s, row, column, T(0)), before, fresh);
  }

  // stores h = (1 - z) n + z h, n masked by recurrent dropout
  template <bool Extra>
  static RNNORM_INLINE void interpolate(const Step<T>& s, int64_t row, int column, V n, V z) {
    if (Extra) n *= drawn(s.candidate, s, row, column, T(1));
    const V before = load_some<W>(s.h_before + row * s.h_before_stride + column, s.units - column);
    V h = n + z * (before - n);
    if (Extra) h = zone_h(s, row, column, h);
    store_some<W, T>(s.h_after + row * s.h_stride + column, h, s.units - column);
  }

  // the gradients of n and of the sum within the gate z; what skips W_h is left in grad_h
  struct Interpolation {
    V n, z;
  };
  template <bool Extra>
  static RNNORM_INLINE Interpolation interpolation(const Step<T>& s, int64_t row, int column, V n,
                                                   V z) {
    const V before = load_some<W>(s.h_before + row * s.h_before_stride + column, s.units - column);
    const V dh = grad_output<Extra>(s, row, column);
    T* grad_h = s.grad_h + row * s.grad_h_stride + column;
    V skips = dh * z, into_n = dh * (T(1) - z);
    if (Extra) {
      const V kept = drawn(s.candidate, s, row, column, T(1));
      into_n *= kept;
      n *= kept;
      if (s.zone_h.drawn) skips += load<W>(grad_h);
    }
    store<W>(grad_h, skips);
    return {into_n, dh * (before - n) * z * (T(1) - z)};
  }

  // prefetches the data of the next tile while this one is computed
  template <int C>
  static RNNORM_INLINE void fetch(const Term<T>& z, int64_t row, int column) {
    if (!z.next) return;
    constexpr int line = 64 / int(sizeof(T));
    for (int c = column * (C / U); c < (column + W) * (C / U); c += line)
      __builtin_prefetch(z.next + row * C + c, 1, 2);
  }

  // gradient of the cell's h; the zoned-out share is kept in grad_h, to which W_h's part is added
  template <bool Extra>
  static RNNORM_INLINE V grad_output(const Step<T>& s, int64_t row, int column) {
    T* from_next = s.grad_h + row * s.grad_h_stride + column;
    V dh = load<W>(from_next);
    if (s.grad_output) {
      // a row's first units may share a line with those of the tile before
      if (s.next_grad_output)
        __builtin_prefetch(s.next_grad_output + row * s.h_stride + column + W - 1);
      dh += load_some<W>(s.grad_output + row * s.h_stride + column, s.units - column);
    }
    if (Extra && s.zone_h.drawn) {
      const V stays = dh * drawn(s.zone_h, s, row, column, T(0));
      store<W>(from_next, stays);
      dh -= stays;
    }
    return dh;
  }
};

}  // namespace
}  // namespace rnnorm
