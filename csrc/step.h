// what a cell's equations see: one tile of U hidden units at one step
#pragma once
#include "layer.h"
#include "normalise.h"

namespace rnnorm {
namespace {

// a raw product and what turns it into a term of the equations
template <class T>
struct Term {
  const T* raw;
  Affine<T> by;
  const T* next;  // the raw product that is read after this one, or null
};

// recurrent dropout of a tile's units at one step
template <class T>
struct Mask {
  const uint8_t* drawn;  // null where nothing is dropped
  int64_t row;
  T scale;
};

// one tile at one step; tiles are [row][column] with columns gate after gate, U each
template <class T>
struct Step {
  int64_t n;      // active rows
  int64_t units;  // of the U that exist
  Term<T> x, h, cell;
  const T *h_before, *c_before;
  T *h_after, *c_after, *c_carried;  // c as it is made, and as the next step finds it
  int64_t h_stride;                  // h is in rows of the whole layer
  const T* peephole[RNNORM_PEEPHOLES];  // the units' weights, null without
  Mask<T> candidate, zone_h, zone_c;
  T* gate;  // scratch, n x U: what the second half of the step still needs

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

  // what a mask says of a vector of units, `otherwise` where there is none
  static RNNORM_INLINE V drawn(const Mask<T>& mask, const Step<T>& s, int64_t row, int column,
                               T otherwise) {
    if (!mask.drawn) return all<W>(otherwise);
    return from_bytes<W, T>(mask.drawn + row * mask.row + column, s.units - column) * mask.scale;
  }

  // a state where the part `kept` is the one of the step before
  static RNNORM_INLINE V mix(V kept, V before, V fresh) {
    return kept * before + (T(1) - kept) * fresh;
  }
  static RNNORM_INLINE V zone_h(const Step<T>& s, int64_t row, int column, V fresh) {
    if (!s.zone_h.drawn) return fresh;
    const V before = load_some<W>(s.h_before + row * s.h_stride + column, s.units - column);
    return mix(drawn(s.zone_h, s, row, column, T(0)), before, fresh);
  }

  // asks for what the next tile needs while this one is computed
  template <int C>
  static RNNORM_INLINE void fetch(const Term<T>& z, int64_t row, int column) {
    if (!z.next) return;
    constexpr int line = 64 / int(sizeof(T));
    for (int c = column * (C / U); c < (column + W) * (C / U); c += line)
      __builtin_prefetch(z.next + row * C + c, 1, 2);
  }

  // gradient of the cell's h; the zoned-out share is kept in grad_h
  template <bool Extra>
  static RNNORM_INLINE V grad_output(const Step<T>& s, int64_t row, int column) {
    T* from_next = s.grad_h + row * s.grad_h_stride + column;
    V dh = load<W>(from_next);
    if (s.grad_output) {
      if (s.next_grad_output) __builtin_prefetch(s.next_grad_output + row * s.h_stride + column);
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
