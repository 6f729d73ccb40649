// the statistics of a layer's normalised sites: which steps take their own, where threads and
// processes wait for each other's parts, and the scale and shift that follow from them
#pragma once
#include "layout.h"
#include "subnormals.h"
#include "team.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct SiteStatistics : Layer<Cell, T> {
  using Base = Layer<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::T_, Base::B, Base::H, Base::gamma, Base::shift,
      Base::gates_of;
  static constexpr int G = Cell::gates;

  int64_t last_good = -1;  // last step with a statistic of its own
  bool failed = false;     // whether an exchange has failed
  // that of the thread which has called the pass, and calls the exchange
  const FloatControl::Register callers_control = FloatControl::read();
  T* affines[RNNORM_SITES];
  // a site normalised by row: each tile's two numbers, and what each thread has merged them to
  struct RowSite {
    Parts<T> parts;
    T* merged;

    T* first(int64_t rank) const { return merged + 2 * rank * parts.blocks * parts.capacity; }
    T* second(int64_t rank) const { return first(rank) + parts.blocks * parts.capacity; }
  };
  RowSite row_site[RNNORM_SITES];

  explicit SiteStatistics(const rnnorm_layer& args) : Base(args) {
    if (a.min_rows >= 0)
      for (int64_t t = 0; t < T_ && all_rows(t) >= a.min_rows; ++t) last_good = t;
  }

  void take(Arena& arena) {
    Base::take(arena);
    for (int which = 0; which < RNNORM_SITES; ++which)
      affines[which] = arena.take<T>(a.threads * affine_room(which));
  }

  // room for a site's rows, if it is normalised by row
  void take_rows(Arena& arena, int which, int64_t rows) {
    int blocks = 1;
    if (which != RNNORM_CELL)
      with_blocks<Cell>(a.site[which].over, [&](auto rows) { blocks = decltype(rows)::count; });
    const int64_t capacity = by_row(which) ? row_capacity(rows) : 0;
    T* parts = arena.take<T>(2 * tiles.count * blocks * capacity);
    row_site[which] = {{parts, capacity, blocks},
                       arena.take<T>(2 * a.threads * blocks * capacity)};
  }
  bool by_row(int which) const { return a.site[which].scope >= RNNORM_ROW; }
  bool centred(int which) const { return a.site[which].scope == RNNORM_ROW; }
  // calls the body with the blocks of a site's term, or of one product's part of it, as a type
  template <int Part = 0, class Body>
  void with_rows(int which, Body body) const {
    if constexpr (Cell::two_products) {
      constexpr int begin = part_begin(RNNORM_HIDDEN, Part),
                    end = begin + part_gates(RNNORM_HIDDEN, Part);
      if (which == RNNORM_HIDDEN)
        return with_blocks<Cell>(a.site[which].over, [&](auto rows) {
          body(Between<decltype(rows), begin, end>{});
        });
    }
    if (which == RNNORM_CELL)
      body(Blocks<1>{});
    else
      with_blocks<Cell>(a.site[which].over, body);
  }
  // the gates of a site's term that are computed together: part 0 of the recurrent term is the first
  // product's, part 1 the second's; every other term is one part
  static constexpr int part_begin(int which, int part) {
    return which == RNNORM_HIDDEN && part ? Cell::first_gates : 0;
  }
  static constexpr int part_gates(int which, int part) {
    return which != RNNORM_HIDDEN ? gates_of(which) : part ? G - Cell::first_gates
                                                           : Cell::first_gates;
  }

  // active rows of all processes at step t
  int64_t all_rows(int64_t t) const { return (a.exchange ? a.all_sizes : a.sizes)[t]; }
  // whether step t takes a statistic of its own over the rows of a site
  bool takes(const rnnorm_site& site, int64_t t) const {
    if (!site.scope || site.scope >= RNNORM_ROW || a.min_rows < 0) return false;
    return rows_of(site, t) >= a.min_rows;
  }
  // the number of rows of that statistic
  int64_t rows_of(const rnnorm_site& site, int64_t t) const {
    return site.scope == RNNORM_SEQUENCE ? plan.all_frames : all_rows(t);
  }

  // whether step t waits for other threads or processes for a site's statistic; the exchange for
  // W_x x is before the first step, in backward after the last one
  bool across(int which, int64_t t) const {
    return by_row(which) || (exchanged(which, t) && (which != RNNORM_INPUT || t == 0));
  }
  bool exchanged(int which, int64_t t) const { return a.exchange && takes(a.site[which], t); }

  // whether a thread reads at a step what others have written at the one before
  bool meets_each_step() const { return !Cell::independent || plan.across; }

  // waits for the parts of sites [first, last] at step t, if there are any; false if an exchange
  // has failed
  bool meet(Team& team, int64_t rank, int64_t t, int first, int last) {
    bool any = false;
    for (int which = first; which <= last; ++which) any |= across(which, t);
    if (!any) return true;
    team.barrier();
    if (!a.exchange) return true;
    for (int which = first; rank == 0 && which <= last && !failed; ++which) {
      if (!across(which, t) || by_row(which)) continue;
      const bool every_step = which == RNNORM_INPUT && !plan.whole;
      // code of others counts no subnormal number as zero, and may shape the tiles of AMX
      release_tiles();
      const WithFloatControl here(callers_control);
      failed = a.exchange(which, t, every_step ? last_good + 1 : 1) != 0;
    }
    team.barrier();
    return !failed;
  }

  // the statistics over rows used at step t, or null, and the distances between them
  struct Statistic {
    const T *mean, *var;
    int64_t row;
  };
  Statistic serving(const rnnorm_site& site, int64_t t, int64_t features) const {
    if (!site.scope || site.scope >= RNNORM_ROW) return {nullptr, nullptr, 0};
    const bool whole = site.scope == RNNORM_SEQUENCE;
    if (whole ? takes(site, t) : last_good >= 0) {
      const int64_t at = whole ? 0 : smaller(t, last_good) * features;
      return {static_cast<const T*>(site.mean) + at, static_cast<const T*>(site.var) + at, 0};
    }
    const int64_t at = smaller(t, site.constant_last) * site.constant_step;
    return {static_cast<const T*>(site.constant_mean) + at,
            static_cast<const T*>(site.constant_var) + at, site.constant_row};
  }

  // reads the constants of a thread's units [first, last) at step t in the order of memory: asked
  // for tile by tile, even long before, they come several times as slowly
  void read_constants(int which, int64_t t, int64_t first, int64_t last) const {
    const rnnorm_site& site = a.site[which];
    if (takes(site, t)) return;
    const int gates = gates_of(which);
    const Statistic from = serving(site, t, gates * H);
    constexpr int64_t line = 64 / int64_t(sizeof(T));
    for (const volatile T* p : {from.mean, from.var})
      for (int g = 0; p && g < gates; ++g)
        for (int64_t k = first; k < last; k += line) (void)p[g * H + k];
  }

  // prepares a site's y = (x - mean) * scale + shift for one tile at step t; y = gamma * x + shift
  // where x has been normalised by row, y = x + shift without a norm. Its 4 * rows * columns
  // numbers, rows > 1 where each has constants of its own, lie in the thread's room for the site,
  // and are overwritten when the next tile or step is prepared
  template <int U, int Which>
  Affine<T> affine(int64_t t, Units u, int64_t rank) const {
    constexpr int Gates = gates_of(Which), C = Gates * U, W = Tile<T, U>::W;
    const rnnorm_site& site = a.site[Which];
    const T *gammas = gamma[Which] + Gates * u.first, *shifts = shift[Which] + Gates * u.first;
    const auto [mean, var, row] = serving(site, t, Gates * H);
    const int64_t rows = row ? a.sizes[t] : 1;
    T *to_mean = affines[Which] + rank * affine_room(Which), *inverse = to_mean + rows * C,
      *scale = inverse + rows * C, *offset_of = scale + rows * C;
    for (int64_t b = 0; b < rows; ++b)
      for (int g = 0; g < Gates; ++g)
        for (int k = 0; k < U; k += W) {
          const int64_t at = g * U + k, to = b * C + at, from = b * row + g * H + u.first + k;
          Vec<T, W> m{}, spread = all<W>(T(1)), times = spread;
          if (site.scope >= RNNORM_ROW) times = load<W>(gammas + at);
          if (mean) {
            m = load_some<W>(mean + from, u.count - k);
            spread = inverse_root<W, T>(load_some<W>(var + from, u.count - k) + T(site.eps));
            times = spread * load<W>(gammas + at);
          }
          store<W>(to_mean + to, m);
          store<W>(inverse + to, spread);
          store<W>(scale + to, times);
          store<W>(offset_of + to, load<W>(shifts + at) - m * times);
        }
    return {to_mean, inverse, scale, offset_of, row ? C : 0};
  }
  int64_t affine_room(int which) const {
    return 4 * gates_of(which) * tile_units * (a.site[which].constant_row ? B : 1);
  }
};

}  // namespace
}  // namespace rnnorm
