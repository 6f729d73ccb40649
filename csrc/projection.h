// an h narrower than its cell's, torch.nn's proj_size: each step multiplies what the cell has made by
// weight_hr, and the output and the next step are of the product. One barrier more a step and pass
#pragma once
#include "forward_products.h"
#include "sites.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct ForwardProjection : ForwardProducts<Cell, T> {
  using Base = ForwardProducts<Cell, T>;
  using Base::a, Base::offset, Base::few, Base::T_, Base::B, Base::H, Base::R, Base::projects;
  using F = Factor<T>;

  const Tiling h_tiles;  // of the units of h
  const int64_t FM;      // factors of a row of the cell's h in the product
  F* panel_r;
  T* made_h;             // the cell's h of one step, where it is not saved
  Stored<T>* made_seen;  // as the product reads it
  T* scratch_product;    // one tile of the product, by thread

  explicit ForwardProjection(const rnnorm_layer& args)
      : Base(args), h_tiles(R), FM(row_factors(H)) {}

  void take(Arena& arena) {
    Base::take(arena);
    panel_r = arena.take<F>(projects() && !few ? h_tiles.padded * FM : 0);
    made_h = arena.take<T>(projects() && !a.saved_made ? B * H : 0);
    made_seen = arena.take<Stored<T>>(projects() && paired ? B * FM * per_factor : 0);
    scratch_product = arena.take<T>(projects() ? a.threads * B * tile_units : 0);
  }

  // where the cell of step t writes its h
  T* cell_h(int64_t t) const {
    if (!projects()) return this->h_after(t);
    return a.saved_made ? static_cast<T*>(a.saved_made) + offset[t] * H : made_h;
  }

  // shows a thread's share of the first h, and packs its rows of weight_hr
  void prepare_projection(int64_t rank, int64_t team) const {
    each_tile(rank, team, [&](auto width, Units u) {
      this->show(u, 0);
      if (projects() && !few)
        pack_columns<T, decltype(width)::value>(a.weight_hr, R, H, u, panel_r + u.first * FM, 0, 1);
    });
  }
  template <class Body>
  void each_tile(int64_t rank, int64_t team, Body body) const {
    h_tiles.each(h_tiles.share(rank, team), h_tiles.share(rank + 1, team), body);
  }

  // what follows when a cell has made a tile of its h
  void pass_made(Units u, int64_t t) const {
    if (!projects()) return pass_on(u, t);
    for (int64_t b = 0; paired && b < a.sizes[t]; ++b)
      this->copy_as_factors(cell_h(t) + b * H + u.first, u, H, made_seen + b * FM * per_factor);
  }
  // what follows when a tile of h is known
  void pass_on(Units u, int64_t t) const {
    const int64_t next = t + 1 < T_ ? a.sizes[t + 1] : 0;
    // one step may write its output where h_n is wanted
    for (int64_t b = next; a.h_n != a.output && b < a.sizes[t]; ++b)
      std::memcpy(static_cast<T*>(a.h_n) + b * R + u.first, this->h_rows(t) + b * R + u.first,
                  size_t(u.count) * sizeof(T));
    this->show(u, t + 1);
  }

  // a thread's share of the h of step t, when all threads have made that of the cell
  void project(int64_t t, int64_t rank, int64_t team) const {
    const int64_t n = a.sizes[t];
    const Stored<T>* rows = made_seen;
    if constexpr (!paired) rows = cell_h(t);
    each_tile(rank, team, [&](auto width, Units u) {
      constexpr int U = decltype(width)::value;
      T* to = scratch_product + rank * B * tile_units;
      if (few)
        unpacked_product<T>(rows, FM * per_factor, n,
                            static_cast<const Stored<T>*>(a.weight_hr) + u.first * H, u.count, H,
                            to, U, false);
      else
        product<T, U>({reinterpret_cast<const F*>(rows), FM, 1, 1, FM, 0}, n,
                      panel_r + u.first * FM, to, U, false);
      if (a.mask[RNNORM_ZONE_H].drawn) zone_out<U>(u, t, to);
      for (int64_t b = 0; b < n; ++b)
        std::memcpy(this->h_after(t) + b * R + u.first, to + b * U, size_t(u.count) * sizeof(T));
      pass_on(u, t);
    });
  }
  // zoneout of a tile of h
  template <int U>
  void zone_out(Units u, int64_t t, T* fresh) const {
    const Mask<T> zone = this->tile_mask(RNNORM_ZONE_H, u, t);
    for (int64_t b = 0; b < a.sizes[t]; ++b, fresh += U) {
      const T* before = a.reset && a.reset[t * B + b] ? nullptr : this->h_rows(t - 1) + b * R;
      for (int64_t k = 0; k < u.count; ++k) {
        const T kept = T(zone.drawn[b * zone.row + k]) * zone.scale;
        fresh[k] = kept * (before ? before[u.first + k] : T(0)) + (T(1) - kept) * fresh[k];
      }
    }
  }
};

template <class Cell, class T>
struct BackwardProjection : SiteGradients<Cell, T> {
  using Base = SiteGradients<Cell, T>;
  using Base::a, Base::offset, Base::B, Base::H, Base::R, Base::FH, Base::projects, Base::columns,
      Base::grad_h;
  using F = Factor<T>;

  const Tiling h_tiles;
  int64_t made_columns;    // columns of the gradient of the cell's h
  T* grad_made;            // that gradient at one step
  F* panel_m;              // weight_hr
  Stored<T>* grad_narrow;  // the gradient of h at one step, as products read it

  explicit BackwardProjection(const rnnorm_layer& args) : Base(args), h_tiles(R) {
    made_columns = quotient_up(H, tile_units) * tile_units;
  }

  void take(Arena& arena) {
    Base::take(arena);
    grad_made = arena.take<T>(projects() ? B * made_columns : 0);
    panel_m = arena.take<F>(projects() ? FH * made_columns : 0);
    grad_narrow = arena.take<Stored<T>>(projects() && paired ? B * FH * per_factor : 0);
  }

  // a thread's units of h
  struct Share {
    int64_t first, last;
  };
  Share share(int64_t rank, int64_t team) const {
    return {h_tiles.share(rank, team) * tile_units, h_tiles.share(rank + 1, team) * tile_units};
  }

  // reads the gradient of the h after the last step, and writes that of the h before the first one, of
  // a thread's units
  void read_last(Share own) const {
    for (int64_t b = 0; own.first < own.last && b < B; ++b) {
      T* to = grad_h + b * columns + own.first;
      this->zero(to, own.last - own.first);
      if (const T* from = static_cast<const T*>(a.grad_h_n))
        std::memcpy(to, from + b * R + own.first, bytes(own));
    }
  }
  void write_first(Share own) const {
    for (int64_t b = 0; a.grad_h0 && own.first < own.last && b < B; ++b)
      std::memcpy(static_cast<T*>(a.grad_h0) + b * R + own.first, grad_h + b * columns + own.first,
                  bytes(own));
  }
  size_t bytes(Share own) const { return size_t(smaller(R, own.last) - own.first) * sizeof(T); }

  // packs the columns of weight_hr of a thread's units [from, to) of the cell
  void pack_projection(int64_t from, int64_t to) const {
    this->each_panel(projects() ? from : to, to, [&](int64_t start, auto width) {
      constexpr int N = decltype(width)::value, S = slice<T, N>;
      F* panel = panel_m + FH * start;
      for (int64_t column = start; column < start + N; column += S)
        for (int64_t k = 0; k < FH * per_factor; k += per_factor, panel += S) {
          const auto* row = static_cast<const Stored<T>*>(a.weight_hr) + k * H + column;
          const int64_t real = smaller(S, H - column);
          std::memset(panel, 0, S * sizeof(F));
          if constexpr (paired)
            pair_up<T>(k < R ? row : nullptr, k + 1 < R ? row + H : nullptr, real, panel);
          else if (real > 0)
            std::memcpy(panel, row, size_t(real) * sizeof(F));
        }
    });
  }

  // the whole gradient of the product of step t, of a thread's units; that of the h before by
  // zoneout stays in grad_h, to which W_h's part is added
  void gather_projected(int64_t t, Share own) const {
    const int64_t last = smaller(R, own.last);
    const T* output = static_cast<const T*>(a.grad_output);
    const Mask<T> zone = this->tile_mask(RNNORM_ZONE_H, {0, R, R}, t);
    for (int64_t b = 0; b < a.sizes[t]; ++b) {
      T *to = projected(t) + b * R, *from_next = grad_h + b * columns;
      for (int64_t k = own.first; k < last; ++k)
        to[k] = from_next[k] + (output ? output[(t * B + b) * R + k] : T(0));
      for (int64_t k = own.first; zone.drawn && k < last; ++k) {
        from_next[k] = to[k] * (T(zone.drawn[b * zone.row + k]) * zone.scale);
        to[k] -= from_next[k];
      }
      if constexpr (paired) {
        if (own.first >= last) continue;
        Stored<T>* narrow = grad_narrow + b * FH * per_factor;
        copy(to + own.first, last - own.first, narrow + own.first);
        if (last == R)
          std::memset(narrow + R, 0, size_t(FH * per_factor - R) * sizeof(*narrow));
      }
    }
  }
  T* projected(int64_t t) const { return static_cast<T*>(a.grad_projected) + offset[t] * R; }

  // the gradient of the cell's h at step t, of a thread's units [from, to), when all threads have
  // gathered that of h
  void through_projection(int64_t t, int64_t from, int64_t to) const {
    const Stored<T>* rows = grad_narrow;
    if constexpr (!paired) rows = projected(t);
    this->each_panel(from, to, [&](int64_t start, auto width) {
      constexpr int N = decltype(width)::value;
      product<T, N>({reinterpret_cast<const F*>(rows), FH, 1, 1, FH, 0}, a.sizes[t],
                    panel_m + FH * start, grad_made + start, made_columns, false);
    });
  }
};

}  // namespace
}  // namespace rnnorm
