// the gradient of each normalised term back to its raw product, at once or after all steps, and
// sums over all steps: the gradients of gamma, shift and peepholes
#pragma once
#include "input_gradients.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct SiteGradients : InputGradients<Cell, T> {
  using Base = InputGradients<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::T_, Base::H, Base::P, Base::capacity,
      Base::steps_rows, Base::ring_h, Base::stored_h, Base::tile_of;
  static constexpr int G = Cell::gates;

  // sums over all steps by site: of the gradient, and of the gradient times the normalised term
  T *total[RNNORM_SITES], *total_dot[RNNORM_SITES], *sum_peephole;
  bool delayed;  // the gradient of W_x x is only known when all frames are done
  T *ring_x, *all_x;
  Stored<T>* stored_x;

  explicit SiteGradients(const rnnorm_layer& args) : Base(args) {
    delayed = plan.ahead && this->takes(a.site[RNNORM_INPUT], 0);
  }

  void take(Arena& arena) {
    Base::take(arena);
    const bool apart = !plan.fused && !delayed;
    ring_x = apart ? arena.take<T>(G * P * steps_rows) : ring_h;
    stored_x = apart ? this->take_stored(arena, ring_x) : stored_h;
    all_x = arena.take<T>(delayed ? G * P * plan.frames : 0);
    for (int which = 0; which < RNNORM_SITES; ++which)
      for (T** p : {total, total_dot}) p[which] = arena.take<T>(this->gates_of(which) * P);
    sum_peephole = arena.take<T>(Cell::weights * P);
  }

  void zero_sums(Units u) const {
    for (int which = 0; which < RNNORM_SITES; ++which) {
      const int gates = this->gates_of(which);
      for (T* p : {total[which], total_dot[which]})
        this->zero(p + gates * u.first, gates * u.width);
    }
    for (int which = 0; which < Cell::weights; ++which)
      this->zero(sum_peephole + which * P + u.first, u.width);
  }

  // adds a tile's sums over n rows to those of all steps; without a norm there is no dot
  template <int Which, int U, int Part = 0>
  void sums(const T* dy, const Term<T>& z, Units u, int64_t n, T* sum, T* dot) const {
    constexpr int C = Base::part_gates(Which, Part) * U, S = Base::gates_of(Which) * U,
                  first = Base::part_begin(Which, Part) * U;
    const int64_t at = Base::gates_of(Which) * u.first + first;
    const bool normalised = a.site[Which].scope;
    if (normalised)
      gradient_sums<T, C, S>(dy + first, z.raw + first, from_column(z.by, first), n, sum, dot);
    else
      plain_sums<T, C, S>(dy + first, n, sum);
    for (int c = 0; c < C; ++c) total[Which][at + c] += sum[c];
    for (int c = 0; normalised && c < C; ++c) total_dot[Which][at + c] += dot[c];
  }

  static Affine<T> from_column(const Affine<T>& by, int column) {
    return {by.mean + column, by.inverse + column, by.scale + column, by.offset + column, by.row};
  }

  // normalises a tile's rows again, as forward did
  template <int U>
  void by_its_rows(int which, const T* from, int64_t t, T* to) const {
    this->with_rows(which, [&](auto rows) {
      standardise<decltype(rows), T, U>(from, a.sizes[t], saved_rows(a.site[which].mean, t),
                                        saved_rows(a.site[which].var, t), plan.frames, to);
    });
  }
  const T* saved_rows(const void* statistic, int64_t t) const {
    return static_cast<const T*>(statistic) + offset[t];
  }

  // stores a tile's sums that other threads or processes need; the sums of two products would be
  // exchanged as those of one, so own_cell.py refuses such a cell where processes share statistics
  template <int Which, int U, int Part = 0>
  void add_sums(int64_t t, const T* dy, const Term<T>& z, Units u, int64_t n) const {
    constexpr int Gates = Base::gates_of(Which);
    T sum[Gates * U], dot[Gates * U];
    sums<Which, U, Part>(dy, z, u, n, sum, dot);
    if (this->by_row(Which)) {
      this->template with_rows<Part>(Which, [&](auto rows) {
        row_gradient_sums<decltype(rows), T, U>(dy, z.raw, z.by.scale, n, u,
                                                this->row_site[Which].parts);
      });
    } else {
      this->scatter(sum, u, exchanged_sums<Which>(t), Gates);
      this->scatter(dot, u, exchanged_sums<Which>(t) + Gates * H, Gates);
    }
  }
  // sums of dy, followed by sums of dy times the normalised term
  template <int Which>
  T* exchanged_sums(int64_t t) const {
    return static_cast<T*>(a.site[Which].sums) + 2 * t * Base::gates_of(Which) * H;
  }

  // the gradient of a site's input from that of its output; adds its sums unless add_sums has
  template <int Which, int U, int Part = 0>
  void through(int64_t t, int64_t rank, const T* dy, const Term<T>& z, Units u, int64_t n,
               T* dx) const {
    constexpr int Gates = Base::gates_of(Which), S = Gates * U,
                  C = Base::part_gates(Which, Part) * U, first = Base::part_begin(Which, Part) * U;
    const rnnorm_site& site = a.site[Which];
    if (this->by_row(Which)) {
      const auto& from = this->row_site[Which];
      return this->template with_rows<Part>(Which, [&](auto rows) {
        row_gradient<decltype(rows), T, U>(dy, z.raw, z.by.scale, n, saved_rows(site.var, t),
                                           plan.frames, from.first(rank), from.second(rank),
                                           from.parts.capacity, dx);
      });
    }
    T sum[S], dot[S];
    if (this->exchanged(Which, t)) {
      this->gather(exchanged_sums<Which>(t), u, sum, Gates);
      this->gather(exchanged_sums<Which>(t) + Gates * H, u, dot, Gates);
    } else {
      sums<Which, U, Part>(dy, z, u, n, sum, dot);
    }
    const Affine<T> by = from_column(z.by, first);
    if (this->takes(site, t))
      batch_gradient<T, C, S>(dy + first, z.raw + first, by, n, this->rows_of(site, t), sum, dot,
                              dx + first);
    else if (site.scope)
      constant_gradient<T, C, S>(dy + first, by, n, dx + first);
    else if (dx != dy)
      std::memcpy(dx, dy, size_t(n * S) * sizeof(T));
  }

  template <int Part = 0>
  void merge_sums(int which, int64_t n, int64_t rank) const {
    const auto& site = this->row_site[which];
    if (!this->by_row(which)) return;
    this->template with_rows<Part>(which, [&](auto rows) {
      merge_gradient_sums<decltype(rows)>(site.parts, tiles, n, this->centred(which),
                                          site.first(rank), site.second(rank));
    });
  }

  // the memory for the gradient of a tile's W_x x
  T* into_x(Units u, int64_t t, int64_t row) const {
    return delayed ? all_x + G * (u.first * plan.frames + offset[t] * u.width)
                   : this->in_ring(ring_x, u, row);
  }

  // gradients of statistics over all frames, or over other processes at all steps; false if an
  // exchange has failed
  bool delayed_input(Team& team, int64_t rank, int64_t first, int64_t last) {
    // calls body for each of a thread's tiles with the rows of each statistic
    const auto each_statistic = [&](auto body) {
      tiles.each(first, last, [&](auto width, Units u) {
        constexpr int U = decltype(width)::value;
        for (int64_t t = 0; t < (plan.whole ? 1 : T_); ++t) {
          const Affine<T> by = this->template affine<U, RNNORM_INPUT>(t, u, rank);
          body(width, u, t, plan.whole ? plan.frames : a.sizes[t],
               Term<T>{tile_of(a.saved_x, G, u, t), by, nullptr}, into_x(u, t, 0));
        }
      });
    };
    if (a.exchange) {
      each_statistic([&](auto width, Units u, int64_t t, int64_t n, const Term<T>& z, T* dz) {
        if (this->exchanged(RNNORM_INPUT, t))
          this->template add_sums<RNNORM_INPUT, decltype(width)::value>(t, dz, z, u, n);
      });
      if (!this->meet(team, rank, 0, RNNORM_INPUT, RNNORM_INPUT)) return false;
    }
    each_statistic([&](auto width, Units u, int64_t t, int64_t n, const Term<T>& z, T* dz) {
      this->template through<RNNORM_INPUT, decltype(width)::value>(t, rank, dz, z, u, n, dz);
    });
    for (int64_t stop = T_, start; stop > 0; stop = start) {
      start = this->chunk_start(stop);
      this->pack_inputs(start, stop, rank, team.size());
      const Stored<T>* dz;
      int64_t rows = plan.frames, row = offset[start];
      if constexpr (paired) {
        tiles.each(first, last, [&](auto, Units u) {
          this->store_rows(into_x(u, start, 0), offset[stop] - row, u, 0, stored_x);
        });
        dz = stored_x, rows = capacity, row = 0;
      } else {
        dz = all_x;
      }
      team.barrier();
      this->input_gradients(team, rank, dz, rows, row, start, stop);
      team.barrier();
    }
    return true;
  }

  // copies a tile's sums to the caller's arrays
  void scatter_sums(Units u) const {
    const int64_t at = G * u.first;
    this->scatter(total[plan.fused ? RNNORM_HIDDEN : RNNORM_INPUT] + at, u, a.grad_bias_ih);
    this->scatter(total[RNNORM_HIDDEN] + at, u, a.grad_bias_hh);
    this->scatter(total[RNNORM_CELL] + u.first, u, a.site[RNNORM_CELL].grad_beta, 1);
    for (int which = 0; which < RNNORM_SITES; ++which) {
      const int gates = this->gates_of(which);
      this->scatter(total_dot[which] + gates * u.first, u, a.site[which].grad_gamma, gates);
    }
    for (int which = 0; which < Cell::weights; ++which)
      this->scatter(sum_peephole + which * P + u.first, u, this->of_units(a.grad_peephole, which), 1);
  }
};

}  // namespace
}  // namespace rnnorm
