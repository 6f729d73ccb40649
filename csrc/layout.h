// the layout of weights, of the statistics of a step and of scratch memory
#pragma once
// a user's cell, rnnorm::Own for numbers of the type RNNORM_OWN, is compiled at its first use
#ifdef RNNORM_OWN
#include "own.h"
#else
#include "cells.h"
#endif
#include "plan.h"
#include "team.h"

namespace rnnorm {
namespace {

// rows of the weight gradients' products: while they are in cache
constexpr int64_t chunk_rows = 512;
// at most so many rows of all steps together are multiplied by weights that are not packed
constexpr int64_t few_rows = 8;

// hands out pieces of one block; with a null block it only adds up their sizes
class Arena {
 public:
  explicit Arena(void* block) : block_(static_cast<char*>(block)) {}
  template <class T>
  T* take(int64_t count) {
    char* piece = block_ ? block_ + used_ : nullptr;
    used_ += quotient_up(count * int64_t(sizeof(T)), 64) * 64;
    return reinterpret_cast<T*>(piece);
  }
  int64_t used() const { return used_; }

 private:
  char* block_;
  int64_t used_ = 0;
};

template <class Cell, class T>
struct Layer {
  static constexpr int G = Cell::gates;
  using F = Factor<T>;

  const rnnorm_layer& a;
  const Plan plan;
  const Tiling tiles;
  const int64_t T_, B, I, H, P;  // P: H rounded up to whole tiles
  const int64_t FI, FH;          // factors of a row of x and of h in their products
  const int64_t head;            // units of a head, which read each other's h alone
  int64_t FR;                    // factors of the most units of h that a tile reads
  int64_t last_good = -1;        // last step with a statistic of its own
  bool failed = false;           // whether an exchange has failed
  int64_t* offset;               // frames before step t
  T *gamma[RNNORM_SITES], *shift[RNNORM_SITES], *affines[RNNORM_SITES], *peepholes, *first_states;
  T* own_weight;       // of an independent cell
  T* two_h = nullptr;  // the h of two steps, if the output is narrower
  T *anew_h, *anew_states;  // a tile of the step before, with zeros in rows that begin anew
  Stored<T>* whole_x;  // x with zeros at the end of each row, where factors need them
  // a site normalised by row: each tile's two numbers, and what each thread has merged them to
  struct RowSite {
    Parts<T> parts;
    T* merged;

    T* first(int64_t rank) const { return merged + 2 * rank * parts.blocks * parts.capacity; }
    T* second(int64_t rank) const { return first(rank) + parts.blocks * parts.capacity; }
  };
  RowSite row_site[RNNORM_SITES];

  explicit Layer(const rnnorm_layer& args)
      : a(args), plan(args, Cell::separate, Cell::two_products), tiles(args.H), T_(args.T), B(args.B), I(args.I),
        H(args.H), P(tiles.padded), FI(row_factors(I)), FH(row_factors(H)),
        head(H / args.heads), FR(0) {
    for (int64_t i = 0; i < tiles.count; ++i) FR = larger(FR, row_factors(read_by(tiles[i]).count));
    if (a.min_rows >= 0)
      for (int64_t t = 0; t < T_ && all_rows(t) >= a.min_rows; ++t) last_good = t;
  }

  void take(Arena& arena) {
    offset = arena.take<int64_t>(T_ + 1);
    for (int which = 0; which < RNNORM_SITES; ++which) {
      for (T** p : {gamma, shift}) p[which] = arena.take<T>(gates_of(which) * P);
      affines[which] = arena.take<T>(a.threads * affine_room(which));
    }
    peepholes = arena.take<T>(Cell::weights * P);
    first_states = arena.take<T>(Cell::states * B * P);
    own_weight = arena.take<T>(Cell::independent ? P : 0);
    anew_h = arena.take<T>(a.reset && passes() ? own_size() : 0);
    anew_states = arena.take<T>(a.reset ? Cell::states * own_size() : 0);
    whole_x = arena.take<Stored<T>>(FI * per_factor > I ? T_ * B * FI * per_factor : 0);
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
  static constexpr int gates_of(int which) { return which == RNNORM_CELL ? 1 : G; }
  // the gates of a site's term that are known together: those of the first recurrent product, then
  // as part 1 those of a second one; all in another term
  static constexpr int part_begin(int which, int part) {
    return which == RNNORM_HIDDEN && part ? Cell::first_gates : 0;
  }
  static constexpr int part_gates(int which, int part) {
    return which != RNNORM_HIDDEN ? gates_of(which) : part ? G - Cell::first_gates
                                                           : Cell::first_gates;
  }

  // offset of a tile's numbers that the step reads again after the barrier
  int64_t own(Units u, int64_t rank) const {
    return B * (plan.across ? u.first : rank * tile_units);
  }
  int64_t own_size() const { return B * (plan.across ? P : a.threads * tile_units); }

  // offset of a tile at step t in the arrays saved for backward
  T* kept(void* saved, int columns, Units u, int64_t t) const {
    return static_cast<T*>(saved) + columns * (plan.frames * u.first + offset[t] * u.width);
  }

  T* kept_state(void* saved, int k, Units u, int64_t t) const {
    return kept(saved, 1, u, t) + k * plan.frames * P;
  }
  // offset of a tile of state k in an array of (states, P, B) numbers
  int64_t in_states(int k, Units u) const { return B * (k * P + u.first); }

  // active rows of all processes at step t
  int64_t all_rows(int64_t t) const { return (a.exchange ? a.all_sizes : a.sizes)[t]; }

  // a tile's units of rows of H numbers, those of a term's gates in torch's order or of a state;
  // zero where no unit is. The tile's rows are `stride` apart, or one after another
  void gather(const void* array, Units u, T* tile, int64_t rows = G, int64_t stride = 0) const {
    const T* from = static_cast<const T*>(array);
    for (int64_t r = 0; r < rows; ++r, tile += stride ? stride : u.width)
      for (int64_t k = 0; k < u.width; ++k)
        tile[k] = from && k < u.count ? from[r * H + u.first + k] : T(0);
  }
  void scatter(const T* tile, Units u, void* array, int64_t rows = G, int64_t stride = 0) const {
    T* to = static_cast<T*>(array);
    if (!to) return;
    for (int64_t r = 0; r < rows; ++r, tile += stride ? stride : u.width)
      std::memcpy(to + r * H + u.first, tile, size_t(u.count) * sizeof(T));
  }

  void prepare_offsets() {
    offset[0] = 0;
    for (int64_t t = 0; t < T_; ++t) offset[t + 1] = offset[t] + a.sizes[t];
  }
  void prepare_inputs() {
    const int64_t row = FI * per_factor;
    for (int64_t r = 0; row > I && r < T_ * B; ++r) {
      std::memcpy(whole_x + r * row, x_rows(0) + r * I, size_t(I) * sizeof(*whole_x));
      std::memset(whole_x + r * row + I, 0, size_t(row - I) * sizeof(*whole_x));
    }
  }

  void prepare_tile(Units u) {
    const void* shifts[] = {a.bias_ih, a.bias_hh, a.site[RNNORM_CELL].beta};
    for (int which = 0; which < RNNORM_SITES; ++which) {
      const int gates = gates_of(which);
      gather(a.site[which].gamma, u, gamma[which] + gates * u.first, gates);
      gather(shifts[which], u, shift[which] + gates * u.first, gates);
    }
    // one bias: both are added to whichever term comes first
    T *sum = shift[plan.fused ? RNNORM_HIDDEN : RNNORM_INPUT] + G * u.first,
      *rest = shift[plan.fused ? RNNORM_INPUT : RNNORM_HIDDEN] + G * u.first;
    for (int64_t k = 0; !Cell::separate && k < G * u.width; ++k) {
      sum[k] += rest[k];
      rest[k] = 0;
    }
    if (Cell::independent) gather(a.weight_hh, u, own_weight + u.first, 1);
    gather_states(a.c0, u, first_states);
    for (int which = 0; which < Cell::weights; ++which)
      gather(a.peephole[which], u, peepholes + which * P + u.first, 1);
  }
  // a tile's units of all states beside h, (states, B, H)
  void gather_states(const void* array, Units u, T* to) const {
    for (int k = 0; k < Cell::states; ++k)
      gather(array ? static_cast<const T*>(array) + k * B * H : nullptr, u, to + in_states(k, u), B);
  }

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

  // reads the constants of a thread's units [first, last) at step t in the order of memory: asked for
  // tile by tile, even long before, they come several times as slowly
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

  // prepares a site's y = (x - mean) * scale + shift for one tile at step t, in the thread's room
  // for 4 * rows * columns, rows > 1 where each has constants of its own; y = gamma * x + shift
  // where x has been normalised by row
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

  // calls square(row of the weight, column of the tile, k) for whole squares of W, the first k
  // below `whole`, else element(row, column, k, whether the unit exists) below `count`, over a
  // tile's rows of a weight (G H, .), of the gates [begin, end)
  template <class Square, class Element>
  void each_weight(int64_t whole, int64_t count, Units u, Square square, Element element,
                   int begin = 0, int end = G) const {
    const int64_t squares = u.count == tile_units ? whole / widest<T> * widest<T> : 0;
    for (int g = begin; g < end; ++g) {
      const int64_t row = g * H + u.first, column = (g - begin) * u.width;
      for (int64_t k = 0; k < squares; k += widest<T>)
        for (int64_t j = 0; j < u.count; j += widest<T>) square(row + j, column + j, k);
      for (int64_t j = 0; j < u.width; ++j)
        for (int64_t k = squares; k < count; ++k) element(row + j, column + j, k, j < u.count);
    }
  }
  // the units of h that a tile's units read
  struct Span {
    int64_t first, count;
  };
  Span read_by(Units u) const {
    if (head == H) return {0, H};
    const int64_t first = u.first / head * head;
    return {first, quotient_up(u.first + u.count, head) * head - first};
  }
  // calls body(unit, place in the tile, first unit of its head) for a tile's units
  template <class Body>
  void each_unit(Units u, Body body) const {
    for (int64_t j = 0; j < u.count; ++j)
      body(u.first + j, j, (u.first + j) / head * head);
  }
  // packs the rows of W_h that belong to a tile, with zeros where a unit does not read
  template <int C>
  void pack_recurrent(Units u, F* panel) const {
    const Span seen = read_by(u);
    if constexpr (Cell::two_products) {
      constexpr int first = C / G * Cell::first_gates;
      pack_columns<first>(a.weight_hh, head, u, panel, 0, Cell::first_gates);
      return pack_columns<C - first>(a.weight_hh, head, u, panel + first * FR, Cell::first_gates);
    }
    if (paired || seen.count == head) return pack_columns<C>(a.weight_hh, head, u, panel);
    const auto* w = static_cast<const F*>(a.weight_hh);
    std::memset(panel, 0, size_t(seen.count) * C * sizeof(F));
    each_unit(u, [&](int64_t unit, int64_t j, int64_t first) {
      for (int g = 0; g < G; ++g)
        for (int64_t k = 0; k < head; ++k)
          panel[in_panel<T, C>(seen.count, first - seen.first + k, g * u.width + j)] =
              w[(g * H + unit) * head + k];
    });
  }
  // packs the rows of a weight that belong to a tile and the gates [begin, end) as a panel of C
  // columns
  template <int C>
  void pack_columns(const void* weight, int64_t K, Units u, F* panel, int begin = 0,
                    int end = G) const {
    const auto* w = static_cast<const Stored<T>*>(weight);
    const int64_t count = row_factors(K);
    each_weight(
        K / per_factor, count, u,
        [&](int64_t row, int64_t column, int64_t k) {
          transpose<widest<T>>(w + row * K + k * per_factor, K,
                               panel + in_panel<T, C>(count, k, column), slice<T, C>);
        },
        [&](int64_t row, int64_t column, int64_t k, bool real) {
          F& to = panel[in_panel<T, C>(count, k, column)] = F(0);
          const int64_t first = k * per_factor, numbers = smaller(per_factor, K - first);
          if (real && numbers > 0) std::memcpy(&to, w + row * K + first, size_t(numbers) * sizeof(*w));
        },
        begin, end);
  }
  // unpacks a panel of the tile's columns to the rows of a weight
  void unpack_columns(const T* panel, int64_t K, Units u, void* weight) const {
    constexpr int W = widest<T>;
    auto* w = static_cast<Stored<T>*>(weight);
    const int64_t C = G * u.width;
    each_weight(
        K, K, u,
        [&](int64_t row, int64_t column, int64_t k) {
          if constexpr (paired) {
            T square[W * W];
            transpose<W>(panel + k * C + column, C, square, W);
            for (int r = 0; r < W; ++r) copy(square + r * W, W, w + (row + r) * K + k);
          } else {
            transpose<W>(panel + k * C + column, C, w + row * K + k, K);
          }
        },
        [&](int64_t row, int64_t column, int64_t k, bool real) {
          if (real) copy(panel + k * C + column, 1, w + row * K + k);
        });
  }

  const Stored<T>* x_rows(int64_t t) const {
    return static_cast<const Stored<T>*>(a.x) + t * B * I;
  }
  const T* h_rows(int64_t t) const {
    return t < 0 ? static_cast<const T*>(a.h0) : h_after(t);
  }
  // where step t writes its h: the output, or in turn one of two steps in scratch memory
  T* h_after(int64_t t) const {
    return two_h ? two_h + t % 2 * B * H : static_cast<T*>(a.output) + t * B * H;
  }

  // the flags of the rows that begin anew before step t, null if none does
  const uint8_t* anew(int64_t t) const {
    const uint8_t* flags = a.reset ? a.reset + t * B : nullptr;
    return flags && std::memchr(flags, 1, size_t(a.sizes[t])) ? flags : nullptr;
  }
  // copies a tile of the step before, whose rows are `stride` apart, with zeros for rows that begin
  // anew
  template <int U>
  const T* seen_anew(const T* from, int64_t stride, Units u, int64_t t, T* to) const {
    const uint8_t* flags = anew(t);
    for (int64_t r = 0; r < a.sizes[t]; ++r) {
      std::memset(to + r * U, 0, U * sizeof(T));
      if (!flags[r]) std::memcpy(to + r * U, from + r * stride, size_t(u.count) * sizeof(T));
    }
    return to;
  }
  // gives a tile the h before step t, and zeros for the states of rows that begin anew
  template <int U>
  void add_before(Step<T>& s, Units u, int64_t t, int64_t rank) const {
    const bool some = anew(t);
    s.h_before = h_rows(t - 1) + u.first;
    s.h_before_stride = H;
    if (some && passes()) {
      s.h_before = seen_anew<U>(s.h_before, H, u, t, anew_h + own(u, rank));
      s.h_before_stride = U;
    }
    for (int k = 0; some && k < Cell::states; ++k)
      s.state[k].before = seen_anew<U>(s.state[k].before, U, u, t,
                                       anew_states + k * own_size() + own(u, rank));
  }

  // gives a tile its peepholes and what recurrent dropout drew for step t
  void add_extra(Step<T>& s, Units u, int64_t t) const {
    if (Cell::two_products) s.seen = tile_mask(RNNORM_SEEN, u, t);
    if (!plan.extra) return;
    s.carry = a.carry;
    for (int which = 0; which < Cell::weights; ++which)
      s.peephole[which] = a.peephole[which] ? peepholes + which * P + u.first : nullptr;
    s.candidate = tile_mask(RNNORM_CANDIDATE, u, t);
    s.zone_h = tile_mask(RNNORM_ZONE_H, u, t);
    s.state[0].zone = tile_mask(RNNORM_ZONE_C, u, t);
  }
  Mask<T> tile_mask(int place, Units u, int64_t t) const {
    const rnnorm_mask& mask = a.mask[place];
    return {mask.drawn ? mask.drawn + t * mask.step + u.first : nullptr, mask.row, T(mask.scale)};
  }
  // multiplies units of a row by the mask of step t's recurrent product
  void drop_hidden(const T* from, int64_t t, int64_t row, int64_t first, int64_t count,
                   T* to) const {
    const rnnorm_mask& mask = a.mask[RNNORM_SEEN];
    const uint8_t* drawn = mask.drawn + t * mask.step + row * mask.row + first;
    for (int64_t k = 0; k < count; ++k) to[k] = from[k] * (T(drawn[k]) * T(mask.scale));
  }

  // W_x x of one tile for the steps [start, stop), whose frames follow each other in `to`
  template <int U>
  void input_product(int64_t start, int64_t stop, Units u, const F* panel, T* to) const {
    constexpr int C = G * U;
    const int64_t steps = a.sizes[stop - 1] == B ? stop - start : 1;
    for (int64_t t = start; t < stop; t += steps) {
      const int64_t n = a.sizes[t] * steps;
      const int64_t row = FI * per_factor;
      const Stored<T>* x = row > I ? whole_x + t * B * row : x_rows(t);
      product<T, C>({reinterpret_cast<const F*>(x), FI, 1, 1, FI, 0}, n, panel, to, C, false);
      clear_missing<U>(u, n, to);
      to += n * C;
    }
  }
  // whether the next step reads another than the new state c, the first beside h
  bool carries() const { return a.carry || a.mask[RNNORM_ZONE_C].drawn; }
  // whether h also passes to the next step without W_h
  bool passes() const { return Cell::skips || a.mask[RNNORM_ZONE_H].drawn; }

  // zeros at units that do not exist: an infinite input or state times 0 is NaN, which backward
  // would spread from there
  template <int U>
  void clear_missing(Units u, int64_t n, T* term) const {
    for (int64_t r = 0; u.count < U && r < n * G; ++r)
      std::memset(term + r * U + u.count, 0, size_t(U - u.count) * sizeof(T));
  }
};

}  // namespace
}  // namespace rnnorm
