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

// the most states of a cell beside h, and weights with one number for each unit
constexpr int most_states = 3, most_weights = 16;

// a state beside h, tiles of n x U
template <class T>
struct State {
  const T* before;    // zeros in rows that begin anew
  T *after, *carried;  // the new state, and what the next step reads (differs for the first only)
  T* grad;            // in: gradient from the next step; out: that for the step before
  Mask<T> zone;       // of the first state only
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
  T* operand;        // what a second recurrent product multiplies
  int64_t h_stride;  // from row to row of both, which have all units of the layer
  State<T> state[most_states];
  const T* peephole[most_weights];  // weights of the units, or null
  Mask<T> seen, candidate, zone_h;
  bool carry;  // the next step reads the normalised first state
  T* halfway;  // scratch, rows of Cell::halfway x U: what the second half of the step reads

  const T* grad_output;       // rows h_stride apart, or null
  const T* next_grad_output;  // the rows that are read next, for prefetching, or null
  T* grad_h;             // in: dh from the next step; out: the part of dh that skips W_h
  const T* grad_operand;
  int64_t grad_h_stride;  // from row to row of both
  T* grad_cell;  // n x U: gradient of the normalised state, then its part of that of the state
  T *grad_zx, *grad_zh;
  T* grad_peephole[most_weights];  // sums over all steps and rows, or null
};

template <class T, int U>
struct Tile {
  static constexpr int W = lanes_of<T, U>;
  using V = Vec<T, W>;

  // calls body(row, first unit of a vector) over the tile
  template <class Body>
  static RNNORM_INLINE void each(int64_t rows, Body body) {
    for (int u = 0; u < U; u += W)
      for (int64_t r = 0; r < rows; ++r) body(r, u);
  }

  // as each, with N sums over the rows, which are added to those of the weights' gradients
  template <int N, class Body>
  static RNNORM_INLINE void each(const Step<T>& s, Body body) {
    if constexpr (N == 0) {
      each(s.n, [&](int64_t r, int u) { body(r, u, nullptr); });
    } else {
      for (int u = 0; u < U; u += W) {
        V sum[N] = {};
        for (int64_t start = 0; start < s.n; start += partial_rows) {
          const int64_t stop = start + partial_rows < s.n ? start + partial_rows : s.n;
          V partial[N] = {};
          for (int64_t r = start; r < stop; ++r) body(r, u, partial);
          for (int k = 0; k < N; ++k) sum[k] += partial[k];
        }
        for (int k = 0; k < N; ++k)
          if (s.grad_peephole[k]) add_to(s.grad_peephole[k] + u, sum[k]);
      }
    }
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

  static RNNORM_INLINE V h_before(const Step<T>& s, int64_t row, int column) {
    return load_some<W>(s.h_before + row * s.h_before_stride + column, s.units - column);
  }
  static RNNORM_INLINE V h_after(const Step<T>& s, int64_t row, int column) {
    return load_some<W>(s.h_after + row * s.h_stride + column, s.units - column);
  }
  // what recurrent dropout multiplies the candidate by
  template <bool Extra>
  static RNNORM_INLINE V candidate_mask(const Step<T>& s, int64_t row, int column) {
    return Extra ? drawn(s.candidate, s, row, column, T(1)) : all<W>(T(1));
  }
  // z, and what a weight that may be absent multiplies
  template <bool Extra>
  static RNNORM_INLINE V plus_seen(const Step<T>& s, int which, int column, V z, V seen) {
    const T* weight = Extra ? s.peephole[which] : nullptr;
    return weight ? z + load<W>(weight + column) * seen : z;
  }

  template <bool Extra>
  static RNNORM_INLINE void store_h(const Step<T>& s, int64_t row, int column, V h) {
    if (Extra && s.zone_h.drawn)
      h = mix(drawn(s.zone_h, s, row, column, T(0)), h_before(s, row, column), h);
    store_some<W, T>(s.h_after + row * s.h_stride + column, h, s.units - column);
  }
  static RNNORM_INLINE void store_operand(const Step<T>& s, int64_t row, int column, V value) {
    store_some<W, T>(s.operand + row * s.h_stride + column, value, s.units - column);
  }
  static RNNORM_INLINE V grad_operand(const Step<T>& s, int64_t row, int column) {
    return load<W>(s.grad_operand + row * s.grad_h_stride + column);
  }
  // stores the first state as the next step reads it, where that differs from the new one
  static RNNORM_INLINE void carry(const Step<T>& s, int64_t row, int column, V normal) {
    const State<T>& state = s.state[0];
    if (!s.carry && !state.zone.drawn) return;
    const int64_t at = row * U + column;
    const V fresh = s.carry ? normal : load<W>(state.after + at);
    store<W>(state.carried + at,
             mix(drawn(state.zone, s, row, column, T(0)), load<W>(state.before + at), fresh));
  }

  // the next step's gradient of the first state: the new value's part, and by zoneout the old one's
  struct Carried {
    V fresh, stays;
  };
  template <bool Extra>
  static RNNORM_INLINE Carried carried(const Step<T>& s, int64_t row, int column) {
    const V grad = load<W>(s.state[0].grad + row * U + column);
    if (!Extra) return {grad, V{}};
    const V stays = grad * drawn(s.state[0].zone, s, row, column, T(0));
    return {grad - stays, stays};
  }
  template <bool Extra>
  static RNNORM_INLINE void grad_before(const Step<T>& s, int64_t row, int column, V grad,
                                        V stays) {
    if (Extra) grad += stays;
    store<W>(s.state[0].grad + row * U + column, grad);
  }
  // stores the gradient of h that skips W_h, added to the share of zoneout or, with More, to an
  // earlier part
  template <bool Extra, bool More>
  static RNNORM_INLINE void skip(const Step<T>& s, int64_t row, int column, V grad) {
    T* to = s.grad_h + row * s.grad_h_stride + column;
    if (More || (Extra && s.zone_h.drawn)) grad += load<W>(to);
    store<W>(to, grad);
  }
  static RNNORM_INLINE void add_to(T* to, V value) { store<W>(to, load<W>(to) + value); }

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
