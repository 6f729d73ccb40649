// the gradients of the weights: dz, the gradient of the products W_x x and W_h h, with the x and h of
// many steps, which are packed as frames
#pragma once
#include "packing.h"
#include "statistics.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct WeightGradients : SiteStatistics<Cell, T> {
  using Base = SiteStatistics<Cell, T>;
  using Base::a, Base::plan, Base::offset, Base::B, Base::I, Base::H, Base::P, Base::R, Base::head,
      Base::reads;
  using typename Base::Span;
  using F = Factor<T>;
  static constexpr int G = Cell::gates;
  // rows of h^T at a time
#ifdef RNNORM_AMX
  static constexpr int packed = 2 * amx_rows;
#else
  static constexpr int packed = Block<T, G * int(tile_units)>::R;
#endif

  // the ring: memory for dz by tile, which the next steps overwrite once products have read it all
  int64_t capacity;    // frames of the ring
  int64_t capacity_f;  // factors along the frames of the ring
  int64_t grad_rows;   // rows of a tile's gradient of W_h: whole blocks of packed_h
  int64_t steps_rows;  // rows of the ring of dz: one step's where products read a copy in bfloat16
  F *packed_x, *packed_h, *thread_dz;
  T *ring_h, *grad_w_ih, *grad_w_hh;
  Stored<T>* stored_h;  // dz in the type that products read, by tile as in the ring
  T* thread_row;        // a row of h as its product has seen it
  // what a second product multiplies: the ring's rows, and these as factors
  T* operands;
  F* packed_operands;

  explicit WeightGradients(const rnnorm_layer& args) : Base(args) {
    this->multiplies_x = plan.recompute;
    capacity = larger(B, smaller(plan.frames, chunk_rows));
    capacity_f = row_factors(capacity);
    steps_rows = paired ? B : capacity;
    // a part of h may begin and end within a block of packed_h
    grad_rows = head == H ? R : this->FR * per_factor + packed;
  }

  void take(Arena& arena) {
    Base::take(arena);
    ring_h = arena.take<T>(G * P * steps_rows);
    stored_h = take_stored(arena, ring_h);
    packed_x = arena.take<F>(quotient_up(I, packed) * packed * capacity_f);
    packed_h = arena.take<F>(Cell::independent ? 0 : quotient_up(R, packed) * packed * capacity_f);
    grad_w_ih = arena.take<T>(G * P * I);
    grad_w_hh = arena.take<T>(Cell::independent ? P : G * P * grad_rows);
    thread_dz = arena.take<F>(a.threads * thread_dz_size());
    operands = arena.take<T>(Cell::two_products ? capacity * H : 0);
    packed_operands =
        arena.take<F>(Cell::two_products ? quotient_up(H, packed) * packed * capacity_f : 0);
    thread_row = arena.take<T>(plan.masked || a.reset || Cell::independent ? a.threads * R : 0);
  }

  // room for dz in the type that products read, which is the ring itself where the types are equal
  Stored<T>* take_stored(Arena& arena, T* ring) const {
    if constexpr (paired)
      return arena.take<Stored<T>>(G * P * capacity);
    else
      return ring;
  }
  // a tile's dz of a step whose first row of the ring is `row`
  T* in_ring(T* ring, Units u, int64_t row) const {
    return ring + G * (u.first * steps_rows + (paired ? 0 : row) * u.width);
  }
  // copies the gates [begin, end) of n rows of a tile's dz for the products, from a row of the ring on
  void store_rows(const T* dz, int64_t n, Units u, int64_t row, Stored<T>* ring, int begin = 0,
                  int end = G) const {
    if constexpr (paired) {
      const int64_t C = G * u.width, first = begin * u.width;
      Stored<T>* to = ring + G * u.first * capacity + row * C + first;
      if (end - begin == G) return copy(dz, n * C, to);
      for (int64_t r = 0; r < n; ++r) copy(dz + r * C + first, (end - begin) * u.width, to + r * C);
    }
  }

  // the steps [start, stop) whose frames fit into the ring
  int64_t chunk_start(int64_t stop) const {
    int64_t start = stop - 1;
    while (start > 0 && offset[stop] - offset[start - 1] <= capacity) --start;
    return start;
  }

  // transposes a thread's share of the frames [start, stop) of x or of h one step before: blocks of
  // `packed` features, each [frame][feature], [pair of frames][feature] or, for AMX, [16 pairs of
  // frames][feature][pair]
  template <class At>
  void pack_frames(At row_of, int64_t K, int64_t start, int64_t stop, int64_t rank, int64_t team,
                   F* to) const {
    const int64_t frames = offset[stop] - offset[start];
    const int64_t groups = row_factors(frames) / factors_at_once;
    const int64_t first = groups * rank / team, last = groups * (rank + 1) / team;
    // few blocks at a time: their lines may all lie in one set of the cache
    constexpr int64_t some = 6 * packed;
    for (int64_t from = 0; from < K; from += some) {
      const int64_t count = smaller(some, K - from);
      int64_t t = start, begin = 0;
      const auto row = [&](int64_t r) {
        while (begin + a.sizes[t] <= r) begin += a.sizes[t++];
        return row_of(t, r - begin, from, count);
      };
      for (int64_t g = first; g < last; ++g) {
        F* out = to + from * capacity_f + g * factors_at_once * packed;
#if defined(RNNORM_AMX)
        F pairs[factors_at_once * some];
        for (int64_t r = 0; r < factors_at_once; ++r)
          pair_frames(row, (g * factors_at_once + r) * 2, frames, count, pairs + r * some);
        for (int64_t k = 0; k < count; k += 16, out += 16 * factors_at_once) {
          if (k > 0 && k % packed == 0) out += packed * (capacity_f - factors_at_once);
          transpose<16>(pairs + k, some, out, factors_at_once);
        }
#else
#if defined(RNNORM_PAIRS)
        F pairs[some];
        pair_frames(row, 2 * g, frames, count, pairs);
        const F* const numbers = pairs;
#else
        const F* const numbers = row(g);
#endif
        int64_t k = 0;
        for (; k + packed <= count; k += packed, out += packed * capacity_f)
          std::memcpy(out, numbers + k, packed * sizeof(F));
        for (int64_t j = 0; j < count - k; ++j) out[j] = numbers[k + j];
#endif
      }
    }
  }
#ifdef RNNORM_PAIRS
  // pairs of the numbers of frame r and of the next one, zeros where there is none
  template <class Row>
  static void pair_frames(Row row, int64_t r, int64_t frames, int64_t count, F* pairs) {
    if (r >= frames) return void(std::memset(pairs, 0, size_t(count) * sizeof(F)));
    lower(row(r), count, pairs);
    if (r + 1 < frames) upper(row(r + 1), count, pairs);
  }
  // the first numbers of pairs, whose second ones become zero
  static void lower(const uint16_t* row, int64_t count, F* pairs) {
    for (int64_t k = 0; k < count; ++k) pairs[k] = row[k];
  }
  static void upper(const uint16_t* row, int64_t count, F* pairs) {
    for (int64_t k = 0; k < count; ++k) pairs[k] |= F(uint32_t(row[k]) << 16);
  }
  static void lower(const T* row, int64_t count, F* pairs) {
    each_part(row, count, [&](int64_t k, int64_t n, const uint16_t* part) {
      lower(part, n, pairs + k);
    });
  }
  static void upper(const T* row, int64_t count, F* pairs) {
    each_part(row, count, [&](int64_t k, int64_t n, const uint16_t* part) {
      upper(part, n, pairs + k);
    });
  }
  template <class Body>
  static RNNORM_INLINE void each_part(const T* row, int64_t count, Body body) {
    constexpr int64_t W = widest<T>;
    uint16_t part[W];
    for (int64_t k = 0; k < count; k += W) {
      copy(row + k, smaller(W, count - k), part);
      body(k, smaller(W, count - k), part);
    }
  }
#endif

  void pack_inputs(int64_t start, int64_t stop, int64_t rank, int64_t team) const {
    const auto row_of = [&](int64_t t, int64_t b, int64_t first, int64_t) {
      return this->x_rows(t) + b * I + first;
    };
    pack_frames(row_of, I, start, stop, rank, team, packed_x);
  }
  void pack_hidden(int64_t start, int64_t stop, int64_t rank, int64_t team) const {
    const auto row_of = [&](int64_t t, int64_t b, int64_t first, int64_t count) {
      return seen_by_product(t, b, first, count, rank);
    };
    pack_frames(row_of, R, start, stop, rank, team, packed_h);
  }
  void pack_operands(int64_t start, int64_t stop, int64_t rank, int64_t team) const {
    const auto row_of = [&](int64_t t, int64_t b, int64_t first, int64_t) {
      return operands + (offset[t] - offset[start] + b) * H + first;
    };
    pack_frames(row_of, H, start, stop, rank, team, packed_operands);
  }
  // units of a row of h as the recurrent product of step t has seen them
  const T* seen_by_product(int64_t t, int64_t b, int64_t first, int64_t count,
                           int64_t rank) const {
    const T* h = this->h_rows(t - 1) + b * R + first;
    T* seen = thread_row + rank * R;
    if (a.reset && a.reset[t * B + b])
      zero(seen, count);
    else if (plan.masked)
      this->drop_hidden(h, t, b, first, count, seen);
    else
      return h;
    return seen;
  }

  // a thread's memory for one tile of dz as a panel; none if its rows are one slice
  int64_t thread_dz_size() const {
    const bool as_it_is = !paired && !Cell::two_products &&
                          slice<T, G * int(tile_units)> == G * tile_units;
    return as_it_is ? 0 : G * tile_units * capacity_f;
  }

  template <int U, int Begin, int End>
  const F* as_panel(const Stored<T>* dz, int64_t frames, F* room) const {
    constexpr int C = (End - Begin) * U, S = slice<T, C>, all = G * U;
    // F is T here; the cast is for clang, which also checks this line where factors are pairs
    if constexpr (!paired && S == all) return reinterpret_cast<const F*>(dz);
    const int64_t zeros = row_factors(frames) - factors(frames);
    for (int c = 0; c < C; c += S) {
      for (int64_t r = 0; r < frames; r += per_factor, room += S) {
        const Stored<T>* row = dz + r * all + Begin * U + c;
        if constexpr (paired)
          pair_up<T>(row, r + 1 < frames ? row + all : nullptr, S, room);
        else
          std::memcpy(room, row, S * sizeof(T));
      }
      std::memset(room, 0, size_t(zeros * S) * sizeof(F));
      room += zeros * S;
    }
    return room - row_factors(frames) * C;
  }

  // adds the gradient of a tile's rows of W_h
  template <int U>
  void recurrent_weight_gradient(Units u, int64_t frames, int64_t rank) const {
    const Span seen = this->read_by(u);
    const int64_t first = whole_blocks(seen.first), last = seen.first + seen.count;
    const Stored<T>* dz = stored_h + G * u.first * capacity;
    T* to = grad_w_hh + G * u.first * grad_rows;
    constexpr int K = Cell::first_gates;
    weight_gradient<U, 0, K>(dz, frames, packed_h, first, last, rank, to);
    if constexpr (K < G)
      weight_gradient<U, K, G>(dz, frames, packed_operands, first, last, rank, to);
  }
  static constexpr int64_t whole_blocks(int64_t k) { return k / packed * packed; }
  // copies the gradient of a tile's rows of W_h to the caller's array
  void unpack_recurrent(Units u) const {
    const Span seen = this->read_by(u);
    const int64_t C = G * u.width, begin = whole_blocks(seen.first);
    const T* panel = grad_w_hh + G * u.first * grad_rows;
    if (paired || seen.count == reads)
      return unpack_columns<G>(panel + (seen.first - begin) * C, H, reads, u, a.grad_weight_hh);
    this->each_unit(u, [&](int64_t unit, int64_t j, int64_t first) {
      for (int g = 0; g < G; ++g)
        for (int64_t k = 0; k < head; ++k)
          static_cast<T*>(a.grad_weight_hh)[(g * H + unit) * head + k] =
              panel[(first - begin + k) * C + g * u.width + j];
    });
  }

  // adds the gradient of a tile's rows of a weight, of the gates [Begin, End), at the columns
  // [first, last), from frames packed by pack_frames
  template <int U, int Begin = 0, int End = G>
  void weight_gradient(const Stored<T>* dz, int64_t frames, const F* activations, int64_t first,
                       int64_t last, int64_t rank, T* to) const {
    constexpr int C = G * U, some = (End - Begin) * U;
    const F* panel =
        this->template as_panel<U, Begin, End>(dz, frames, thread_dz + rank * thread_dz_size());
    const auto* next = reinterpret_cast<const F*>(dz + frames * C);
    for (int64_t k = first; k < last; k += packed, to += packed * C) {
      // the sums that come next are not in cache
      for (int64_t at = 0; at < packed * C; at += 64 / int64_t(sizeof(T)))
        __builtin_prefetch(to + packed * C + at, 1);
#ifdef RNNORM_AMX
      const RowsOf<T> rows = {activations + k * capacity_f, amx_pairs, 1,
                              row_factors(frames) / amx_pairs, amx_pairs, packed * amx_pairs};
#else
      const RowsOf<T> rows = {activations + k * capacity_f, 1, packed, 1, factors(frames), 0};
#endif
      product<T, some>(rows, smaller(packed, last - k), panel, to + Begin * U, C, true, next);
    }
  }

  static void zero(T* p, int64_t count) { std::memset(p, 0, size_t(count) * sizeof(T)); }
};

}  // namespace
}  // namespace rnnorm
