// the products of the forward pass, tile by tile, and the statistics of their rows and columns
#pragma once
#include "packing.h"
#include "statistics.h"

namespace rnnorm {
namespace {

// a call of at most this many rows, over all steps, multiplies them by weights that are not packed
constexpr int64_t few_rows = 8;

template <class Cell, class T>
struct ForwardProducts : SiteStatistics<Cell, T> {
  using Base = SiteStatistics<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::T_, Base::B, Base::I, Base::H,
      Base::P, Base::R, Base::FI, Base::FH, Base::FR, Base::head, Base::reads, Base::two_h,
      Base::tile_of;
  using F = Factor<T>;
  static constexpr int G = Cell::gates;

  bool few;               // so few rows that packing the weights would cost more than the products
  bool late;              // W_x x is computed just before its use
  int64_t steps_at_once;  // steps of one input product
  F *panel_x, *panel_h;
  T* chunk;          // W_x x of steps_at_once steps, where it is not saved
  T *scratch_x, *scratch_h;  // the terms of one step, where these are not saved either
  bool shows;       // the recurrent product reads another array than the output: seen
  Stored<T>* seen;  // the h of two steps as their recurrent products see it
  T* inputs_anew;   // W_x x of the rows that begin anew, by thread
  T* operand;       // what a second recurrent product multiplies
  Stored<T>* seen_operand;  // the same as that product reads it

  explicit ForwardProducts(const rnnorm_layer& args) : Base(args) {
    // in evaluation only: the sums have another order
    few = !Cell::two_products && a.min_rows < 0 && !a.saved_h && T_ * B <= few_rows;
    this->multiplies_x = !few;
    shows = !Cell::independent && (paired || plan.masked);
    // few inputs: compute W_x x just before its use; many, or few rows a step, for which W_x would
    // be read again and again: while a tile of W_x is in cache
    late = plan.recompute && B > few_rows;
    steps_at_once = plan.ahead ? T_
                    : late     ? 1
                               : smaller(T_, quotient_up(chunk_rows / 2, larger(B, 1)));
  }

  void take(Arena& arena) {
    Base::take(arena);
    panel_x = arena.take<F>(few ? 0 : G * P * FI);
    panel_h = arena.take<F>(few || Cell::independent ? 0 : G * P * FR);
    const bool chunked = !late && (plan.fused ? !a.saved_h : !a.saved_x);
    chunk = arena.take<T>(chunked ? G * P * steps_at_once * B : 0);
    scratch_x = arena.take<T>(late ? G * this->scratch_size() : 0);
    scratch_h = arena.take<T>(a.saved_h ? 0 : G * this->scratch_size());
    inputs_anew = arena.take<T>(a.reset && plan.fused ? a.threads * G * tile_units * B : 0);
    seen = arena.take<Stored<T>>(shows ? 2 * B * seen_stride() : 0);
    operand = arena.take<T>(Cell::two_products ? B * H : 0);
    seen_operand = arena.take<Stored<T>>(Cell::two_products && paired ? B * seen_stride() : 0);
    two_h = arena.take<T>(a.narrow ? 2 * B * R : 0);
    if (!a.narrow) two_h = nullptr;
    this->take_rows(arena, RNNORM_INPUT, steps_at_once * B);
    this->take_rows(arena, RNNORM_HIDDEN, B);
    this->take_rows(arena, RNNORM_CELL, B);
  }

  T* in_chunk(Units u, int64_t t) const {
    const int64_t start = t - t % steps_at_once;
    return chunk + G * (u.first * steps_at_once * B + (offset[t] - offset[start]) * u.width);
  }
  T* x_terms(Units u, int64_t t, int64_t rank) const {
    if (late) return scratch_x + G * this->scratch_at(u, rank);
    return a.saved_x ? tile_of(a.saved_x, G, u, t) : in_chunk(u, t);
  }
  T* h_terms(Units u, int64_t t, int64_t rank) const {
    if (a.saved_h) return tile_of(a.saved_h, G, u, t);
    return plan.fused ? in_chunk(u, t) : scratch_h + G * this->scratch_at(u, rank);
  }

  template <int U>
  void pack_weights(Units u) const {
    if (few) return;
    pack_columns<T, G * U>(a.weight_ih, H, I, u, panel_x + G * u.first * FI, 0, G);
    if (!Cell::independent) pack_recurrent<G * U>(u, panel_h + G * u.first * FR);
  }
  // packs the rows of W_h that belong to a tile, with zeros where a unit does not read
  template <int C>
  void pack_recurrent(Units u, F* panel) const {
    const auto seen = this->read_by(u);
    if constexpr (Cell::two_products) {
      constexpr int first = C / G * Cell::first_gates;
      pack_columns<T, first>(a.weight_hh, H, reads, u, panel, 0, Cell::first_gates);
      return pack_columns<T, C - first>(a.weight_hh, H, reads, u, panel + first * FR,
                                        Cell::first_gates, G);
    }
    if (paired || seen.count == reads)
      return pack_columns<T, C>(a.weight_hh, H, reads, u, panel, 0, G);
    const auto* w = static_cast<const F*>(a.weight_hh);
    std::memset(panel, 0, size_t(seen.count) * C * sizeof(F));
    this->each_unit(u, [&](int64_t unit, int64_t j, int64_t first) {
      for (int g = 0; g < G; ++g)
        for (int64_t k = 0; k < head; ++k)
          panel[in_panel<T, C>(seen.count, first - seen.first + k, g * u.width + j)] =
              w[(g * H + unit) * head + k];
    });
  }

  // one tile's products at step t, and what its rows and columns add to the statistics
  template <int U>
  void products(Units u, int64_t t, int64_t rank) const {
    constexpr int C = G * U;
    const rnnorm_site* x_site = &a.site[RNNORM_INPUT];
    const int64_t n = a.sizes[t];
    T *x = plan.fused ? nullptr : x_terms(u, t, rank), *h = h_terms(u, t, rank);
    if (t % steps_at_once == 0) {
      const int64_t stop = smaller(T_, t + steps_at_once);
      T* to = plan.fused ? h : x;
      if (!few) this->template input_product<U>(t, stop, u, panel_x + G * u.first * FI, to);
      for (int64_t i = t; few && i < stop; to += G * U * a.sizes[i++])
        dots<U>(this->x_rows(i), I, a.sizes[i], a.weight_ih, I, H, u, to, false);
      if (plan.whole && this->takes(*x_site, t)) {
        take_statistic<G, U>(*x_site, x, plan.frames, u, 0);
      } else if (plan.ahead) {
        for (int64_t i = 0; i < T_ && this->takes(*x_site, i); ++i)
          take_statistic<G, U>(*x_site, x_terms(u, i, rank), a.sizes[i], u, i);
      }
      take_rows_of<U>(RNNORM_INPUT, x, offset[stop] - offset[t], u);
    }
    const uint8_t* anew = Cell::has_product ? this->anew(t) : nullptr;
    T* x_of_anew = inputs_anew + rank * G * tile_units * B;
    for (int64_t r = 0; anew && plan.fused && r < n; ++r)
      if (anew[r]) std::memcpy(x_of_anew + r * C, h + r * C, C * sizeof(T));
    if constexpr (!Cell::has_product)
      std::memset(h, 0, plan.fused ? 0 : size_t(n * C) * sizeof(T));
    else if constexpr (Cell::independent)
      scaled<U>(t, n, u, h, plan.fused);
    else if (few)
      dots<U>(before_rows(t), seen_stride(), n, a.weight_hh, reads, head, u, h, plan.fused);
    else
      recurrent_product<U>(before_rows(t), n, u, h);
    // a product with the state before would spread its NaN
    for (int64_t r = 0; anew && r < n; ++r) {
      if (!anew[r]) continue;
      if (plan.fused)
        std::memcpy(h + r * C, x_of_anew + r * C, C * sizeof(T));
      else
        std::memset(h + r * C, 0, C * sizeof(T));
    }
    // elsewhere h is finite, or backward makes the gradients of units that do not exist zero: a
    // ReLU reads 0 as their h, and clear_beyond does so in users' cells
    if (t == 0 || this->passes() || this->projects()) this->template clear_missing<U>(u, n, h);
    if (!plan.ahead && this->takes(*x_site, t)) take_statistic<G, U>(*x_site, x, n, u, t);
    take_hidden<U, 0>(h, n, u, t);
  }

  // the product of what the first one made, and what its rows and columns add to the statistics
  template <int U>
  void second_product(Units u, int64_t t, int64_t rank) const {
    const int64_t n = a.sizes[t];
    T* h = h_terms(u, t, rank);
    if constexpr (paired)
      recurrent_product<U, 1>(seen_operand, n, u, h);
    else
      recurrent_product<U, 1>(operand, n, u, h);
    this->template clear_missing<U>(u, n, h);
    take_hidden<U, 1>(h, n, u, t);
  }

  template <int U, int Part = 0>
  void recurrent_product(const Stored<T>* before, int64_t n, Units u, T* h) const {
    constexpr int first = U * Base::part_begin(RNNORM_HIDDEN, Part),
                  C = U * Base::part_gates(RNNORM_HIDDEN, Part);
    const auto seen = this->read_by(u);
    product<T, C>({reinterpret_cast<const F*>(before + seen.first), FH, 1, 1,
                   row_factors(seen.count), 0},
                  n, panel_h + G * u.first * FR + first * FR, h + first, G * U, plan.fused);
  }

  // n rows of the h before step t times an independent cell's weight, unit by unit
  template <int U>
  void scaled(int64_t t, int64_t n, Units u, T* to, bool accumulate) const {
    const T* weight = this->unit_weight + u.first;
    for (int64_t r = 0; r < n; ++r, to += U) {
      T room[tile_units];
      const T* h = masked_h(u, t, r, room);
      for (int64_t k = 0; k < U; ++k) {
        const T term = k < u.count ? h[k] * weight[k] : T(0);
        to[k] = accumulate ? to[k] + term : term;
      }
    }
  }

  // n rows, `stride` apart, times the rows of a weight (G H, K) that belong to a tile; each `units`
  // of these multiply K numbers of their own
  template <int U>
  void dots(const Stored<T>* rows, int64_t stride, int64_t n, const void* weight, int64_t K,
            int64_t units, Units u, T* to, bool accumulate) const {
    // zeros at units that do not exist
    if (u.count < U && !accumulate) std::memset(to, 0, size_t(n * G * U) * sizeof(T));
    const auto* w = static_cast<const Stored<T>*>(weight);
    for (int64_t j = 0, count; j < u.count; j += count) {
      const int64_t first = u.first + j, part = first < units ? 0 : first / units;
      count = smaller(u.count - j, (part + 1) * units - first);
      for (int g = 0; g < G; ++g)
        unpacked_product<T>(rows + part * K, stride, n, w + (g * H + first) * K, count, K,
                            to + g * U + j, G * U, accumulate);
    }
  }

  template <int U, int Part>
  void take_hidden(const T* h, int64_t n, Units u, int64_t t) const {
    const rnnorm_site& site = a.site[RNNORM_HIDDEN];
    constexpr int begin = Base::part_begin(RNNORM_HIDDEN, Part),
                  gates = Base::part_gates(RNNORM_HIDDEN, Part);
    if (this->takes(site, t)) take_statistic<gates, U, begin, G>(site, h, n, u, t);
    take_rows_of<U, Part>(RNNORM_HIDDEN, h, n, u);
  }

  // takes a tile's mean and biased variance, or for exchange the sum of squares, of the Gates from
  // Begin on among All of a term
  template <int Gates, int U, int Begin = 0, int All = Gates>
  void take_statistic(const rnnorm_site& site, const T* z, int64_t n, Units u, int64_t t) const {
    T mean[Gates * U], var[Gates * U];
    moments<T, Gates * U, All * U>(z + Begin * U, n, mean, var);
    for (int c = 0; !a.exchange && c < Gates * U; ++c) var[c] /= T(n);
    const int64_t to = (t * All + Begin) * H;
    this->scatter(mean, u, static_cast<T*>(site.mean) + to, Gates);
    this->scatter(var, u, static_cast<T*>(site.var) + to, Gates);
  }

  // a tile's part of the statistics of a site's rows
  template <int U, int Part = 0>
  void take_rows_of(int which, const T* z, int64_t n, Units u) const {
    if (!this->by_row(which)) return;
    this->template with_rows<Part>(which, [&](auto rows) {
      row_moments<decltype(rows), T, U>(z, n, u, this->centred(which), this->row_site[which].parts);
    });
  }

  // merges the statistics of a site's rows at step t, every thread for itself
  template <int Part = 0>
  void merge_rows(int which, int64_t t, int64_t row, int64_t rank) const {
    if (!this->by_row(which)) return;
    const auto& site = this->row_site[which];
    const int64_t n = a.sizes[t];
    this->template with_rows<Part>(which, [&](auto rows) {
      using R = decltype(rows);
      merge_moments<R>(site.parts, tiles, row, n, T(a.site[which].eps), site.first(rank),
                       site.second(rank));
      if (rank != 0 || !a.site[which].mean) return;
      for (int block = R::begin; block < R::end; ++block) {
        const int64_t from = block * site.parts.capacity, to = block * plan.frames + offset[t];
        const size_t bytes = size_t(n) * sizeof(T);
        std::memcpy(static_cast<T*>(a.site[which].mean) + to, site.first(rank) + from, bytes);
        std::memcpy(static_cast<T*>(a.site[which].var) + to, site.second(rank) + from, bytes);
      }
    });
  }

  // normalises a tile's rows by what merge_rows has left
  template <int U, int Part = 0>
  void by_its_rows(int which, const T* from, int64_t n, int64_t rank, T* to) const {
    const auto& site = this->row_site[which];
    this->template with_rows<Part>(which, [&](auto rows) {
      standardise<decltype(rows), T, U>(from, n, site.first(rank), site.second(rank),
                                        site.parts.capacity, to);
    });
  }

  // writes the h of a tile as the recurrent product of step t reads it, for all threads; meanwhile
  // other threads read that of the step before
  Stored<T>* seen_rows(int64_t t) const { return seen + t % 2 * B * seen_stride(); }
  int64_t seen_stride() const { return FH * per_factor; }
  void show(Units u, int64_t t) const {
    for (int64_t b = 0; two_h && t > 0 && b < a.sizes[t - 1]; ++b)
      copy_units(this->h_rows(t - 1) + b * R + u.first, u, narrow_rows(t) + b * R + u.first);
    if (!shows || t == T_ || before_rows(t) != seen_rows(t)) return;
    for (int64_t b = 0; b < a.sizes[t]; ++b) {
      T room[tile_units];
      copy_as_factors(masked_h(u, t, b, room), u, R, seen_rows(t) + b * seen_stride());
    }
  }
  // a tile's units of a row of h as step t multiplies them: in `room` if there is a mask
  const T* masked_h(Units u, int64_t t, int64_t row, T* room) const {
    const T* h = this->h_rows(t - 1) + row * R + u.first;
    if (!plan.masked) return h;
    this->drop_hidden(h, t, row, u.first, u.count, room);
    return room;
  }
  // copies some of the `all` units of a row that products read, with zeros beyond the last
  static void copy_as_factors(const T* from, Units u, int64_t all, Stored<T>* row) {
    copy_units(from, u, row + u.first);
    const int64_t left = row_factors(all) * per_factor - all;
    if (u.first + u.count == all && left) std::memset(row + all, 0, size_t(left) * sizeof(*row));
  }
  static void copy_units(const T* from, Units u, Stored<T>* to) {
    if (u.count == tile_units)
      copy(from, tile_units, to);
    else
      copy(from, u.count, to);
  }
  // the narrow output of the step before t
  Stored<T>* narrow_rows(int64_t t) const {
    return static_cast<Stored<T>*>(a.output) + (t - 1) * B * R;
  }
  const Stored<T>* before_rows(int64_t t) const {
    if constexpr (!paired)
      if (!plan.masked) return this->h_rows(t - 1);
    // rows that end at an odd unit are not whole factors
    return two_h && t > 0 && !plan.masked && seen_stride() == R ? narrow_rows(t) : seen_rows(t);
  }
};

}  // namespace
}  // namespace rnnorm
