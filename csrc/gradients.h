// the products of the backward pass: dZ with the weights, and dZ with x and h
#pragma once
#include "layout.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct GradientProducts : Layer<Cell, T> {
  using Base = Layer<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::T_, Base::B, Base::I, Base::H,
      Base::P, Base::head;
  using typename Base::Span;
  using F = Factor<T>;
  static constexpr int G = Cell::gates;
  static constexpr int packed = Block<T, G * int(tile_units)>::R;  // rows of h^T at a time
  static constexpr int64_t panel_tiles = 8;  // this many tiles of W, 64 columns wide, fit in cache

  int64_t capacity;  // frames of the ring
  int64_t columns;   // columns of the gradient of h: P rounded up to whole vectors
  int64_t capacity_f;  // factors along the frames of the ring
  int64_t grad_rows;   // rows of a tile's gradient of W_h: whole blocks of packed_h
  int64_t steps_rows;  // rows of the ring of dz: one step's where products read a copy in bfloat16
  F *panel_t, *panel_i, *packed_x, *packed_h, *own_dz;
  T *ring_h, *grad_w_ih, *grad_w_hh, *grad_h, *block_x;
  Stored<T>* stored_h;  // dz in the type that products read, by tile as in the ring
  T *grad_seen, *own_row;  // gradient of the masked h; a row of h as its product has seen it
  // of what a second product multiplies: the ring's rows, these as factors, the gradient of a step
  T *operands, *grad_operand;
  F* packed_operands;

  explicit GradientProducts(const rnnorm_layer& args) : Base(args) {
    columns = quotient_up(P, tile_units) * tile_units;
    capacity = larger(B, smaller(plan.frames, chunk_rows));
    capacity_f = factors(capacity);
    steps_rows = paired ? B : capacity;
    // a part of h may begin and end within a block of packed_h
    grad_rows = head == H ? H : this->FR + packed;
  }

  void take(Arena& arena) {
    Base::take(arena);
    panel_t = arena.take<F>(Cell::independent ? 0 : factors(G * P) * columns);
    panel_i = arena.take<F>(a.grad_x ? factors(G * P) * quotient_up(I, 64) * 64 : 0);
    ring_h = arena.take<T>(G * P * steps_rows);
    stored_h = take_stored(arena, ring_h);
    packed_x = arena.take<F>(quotient_up(I, packed) * packed * capacity_f);
    packed_h = arena.take<F>(Cell::independent ? 0 : quotient_up(H, packed) * packed * capacity_f);
    grad_w_ih = arena.take<T>(G * P * I);
    grad_w_hh = arena.take<T>(Cell::independent ? P : G * P * grad_rows);
    grad_h = arena.take<T>(B * columns);
    block_x = arena.take<T>(a.grad_x ? 64 * capacity : 0);
    own_dz = arena.take<F>(a.threads * own_dz_size());
    operands = arena.take<T>(Cell::two_products ? capacity * H : 0);
    grad_operand = arena.take<T>(Cell::two_products ? B * columns : 0);
    packed_operands =
        arena.take<F>(Cell::two_products ? quotient_up(H, packed) * packed * capacity_f : 0);
    grad_seen = arena.take<T>(plan.masked ? B * columns : 0);
    own_row = arena.take<T>(plan.masked || a.reset || Cell::independent ? a.threads * H : 0);
  }

  // room for dz in the type that products read, which is the ring itself where the types are equal
  Stored<T>* take_stored(Arena& arena, T* ring) const {
    if constexpr (paired)
      return arena.take<Stored<T>>(G * P * capacity);
    else
      return ring;
  }
  // copies n rows of a tile's dz for the products, from a row of the ring on
  void store_rows(const T* dz, int64_t n, Units u, int64_t row, Stored<T>* ring) const {
    const int64_t C = G * u.width;
    if constexpr (paired) copy(dz, n * C, ring + G * u.first * capacity + row * C);
  }

  // a thread's columns [from, to) of W_h, and its share of W_x's, for in_panels
  void pack_weights(Team& team, int64_t rank, int64_t from, int64_t to) const {
    each_panel(from, Cell::independent ? from : to, [&](int64_t start, auto width) {
      constexpr int N = decltype(width)::value;
      constexpr int K = Cell::first_gates;
      this->template pack_rows<N>(a.weight_hh, head, head, readers(start, N), start,
                                  panel_t + factors(K * P) * start, 0, K);
      if (K < G)
        this->template pack_rows<N>(a.weight_hh, head, head, readers(start, N), start,
                                    second_panel() + factors((G - K) * P) * start, K, G);
    });
    if (a.grad_x)
      for (int64_t column = 64 * rank; column < I; column += 64 * team.size())
        this->template pack_rows<64>(a.weight_ih, I, H, {0, tiles.count}, column,
                                     panel_i + factors(G * P) * column);
  }
  F* second_panel() const { return panel_t + factors(Cell::first_gates * P) * columns; }
  // the tiles with units that read some of the h of `count` units
  Span readers(int64_t first, int64_t count) const {
    if (head == H) return {0, tiles.count};
    const int64_t begin = first / head * head / tile_units,
                  end = quotient_up(smaller(first + count, H), head) * head;
    return {begin, quotient_up(end, tile_units) - begin};
  }

  // columns [first, last) of dR W_h at step t, from the panels packed by pack_rows
  void recurrent_gradient(int64_t t, int64_t row, int64_t first, int64_t last,
                          int64_t rank) const {
    const bool passes = this->passes();
    T* to = plan.masked ? grad_seen : grad_h;
    if constexpr (Cell::independent) {
      for (int64_t i = first / tile_units; i < last / tile_units; ++i)
        own_gradient(tiles[i], t, row, rank);
    } else {
      each_panel(first, last, [&](int64_t start, auto width) {
        constexpr int N = decltype(width)::value;
        this->template in_panels<N>(stored_h, capacity, row, a.sizes[t], readers(start, N),
                                    panel_t + factors(Cell::first_gates * P) * start, to + start,
                                    columns, passes && !plan.masked, 0, Cell::first_gates);
      });
    }
    const int64_t real = larger(0, smaller(H, last) - first);
    for (int64_t b = 0; plan.masked && b < a.sizes[t]; ++b) {
      T *seen = grad_seen + b * columns + first, *h = grad_h + b * columns + first;
      this->drop_hidden(seen, t, b, first, real, seen);
      for (int64_t k = 0; k < last - first; ++k) h[k] = passes ? h[k] + seen[k] : seen[k];
    }
    const uint8_t* anew = this->anew(t);
    for (int64_t b = 0; anew && b < a.sizes[t]; ++b)
      if (anew[b]) zero(grad_h + b * columns + first, last - first);
  }

  // columns [first, last) of the gradient of what the second product of step t multiplies
  void operand_gradient(int64_t t, int64_t row, int64_t first, int64_t last) const {
    each_panel(first, last, [&](int64_t start, auto width) {
      constexpr int N = decltype(width)::value;
      this->template in_panels<N>(stored_h, capacity, row, a.sizes[t], readers(start, N),
                                  second_panel() + factors((G - Cell::first_gates) * P) * start,
                                  grad_operand + start, columns, false, Cell::first_gates, G);
    });
  }

  // calls body(first column, number of columns as a type) for panels of at most 64
  template <class Body>
  static void each_panel(int64_t first, int64_t last, Body body) {
    for (; last - first >= 64; first += 64) body(first, Width<64>{});
    if (last - first == 48)
      body(first, Width<48>{});
    else if (last - first == 32)
      body(first, Width<32>{});
    else if (last - first == 16)
      body(first, Width<16>{});
  }

  // the number of tiles before `last`, from this one on, that are packed together
  int64_t tiles_together(int64_t tile, int64_t last) const {
    const int64_t full = smaller(P / tile_units, last);
    return tile < full ? smaller(panel_tiles, full - tile) : 1;
  }

  // to (n x N) = or += rows of dZ, tile after tile of those `among` all, times a panel of the gates
  // [begin, end), each (P x N)
  template <int N>
  void in_panels(const Stored<T>* dz, int64_t rows, int64_t row, int64_t n, Span among,
                 const F* panel, T* to, int64_t stride, bool accumulate, int begin = 0,
                 int end = G) const {
    // without hidden units no product writes the sum
    if (P == 0 && !accumulate)
      for (int64_t r = 0; r < n; ++r) zero(to + r * stride, N);
    const int64_t last = among.first + among.count;
    for (int64_t tile = among.first, count; tile < last; tile += count) {
      count = tiles_together(tile, last);
      const Units u = tiles[tile];
      const int64_t C = G * u.width, some = (end - begin) * u.width;
      const auto* from = reinterpret_cast<const F*>(dz + G * u.first * rows + C * row +
                                                    begin * u.width);
      product<T, N>({from, factors(C), 1, count, factors(some), factors(C * rows)}, n,
                    panel + factors((end - begin) * u.first) * N, to, stride, accumulate);
      accumulate = true;
    }
  }

  // packs N columns of the gates [begin, end) of a weight (G H, K) from `first` on for in_panels;
  // each `units` of a gate's rows have K columns of their own, and zeros in those of others
  template <int N>
  void pack_rows(const void* weight, int64_t K, int64_t units, Span among, int64_t first, F* panel,
                 int begin_gate = 0, int end_gate = G) const {
    constexpr int64_t S = slice<T, N>;
    const auto* w = static_cast<const Stored<T>*>(weight);
    const int64_t last = among.first + among.count;
    panel += factors((end_gate - begin_gate) * tile_units * among.first) * N;
    for (int64_t tile = among.first, count; tile < last; tile += count) {
      count = tiles_together(tile, last);
      for (int64_t column = first; column < first + N; column += S) {
        for (int64_t i = tile; i < tile + count; ++i) {
          const Units u = tiles[i];
          for (int g = begin_gate; g < end_gate; ++g)
            for (int64_t k = 0; k < u.width; k += per_factor, panel += S) {
              const int64_t unit = u.first + k, begin = unit < units ? 0 : unit / units * K;
              const int64_t from = larger(column, begin),
                            real = smaller(column + S, begin + K) - from;
              const Stored<T>* row = w + (g * H + unit) * K + from - begin;
              std::memset(panel, 0, S * sizeof(F));
              if constexpr (paired)
                pair_up(k < u.count ? row : nullptr, k + 1 < u.count ? row + K : nullptr, real,
                        panel);
              else if (k < u.count && real > 0)
                std::memcpy(panel + from - column, row, size_t(real) * sizeof(F));
            }
        }
      }
    }
  }

  // the numbers of two rows side by side, zeros of a row that is null
  static RNNORM_INLINE void pair_up(const Stored<T>* a, const Stored<T>* b, int64_t count, F* to) {
    for (int64_t k = 0; a && b && k < count; ++k) to[k] = F(uint32_t(b[k]) << 16 | a[k]);
    for (int64_t k = 0; !b && a && k < count; ++k) to[k] = a[k];
  }

  // transposes a thread's share of the frames [start, stop) of x or of h one step before:
  // blocks of `packed` features, each [frame][feature], or of pairs of frames
  template <class At>
  void pack_frames(At row_of, int64_t K, int64_t start, int64_t stop, int64_t rank, int64_t team,
                   F* to) const {
    const int64_t frames = offset[stop] - offset[start], rows = factors(frames);
    const int64_t first = rows * rank / team, last = rows * (rank + 1) / team;
    // few blocks at a time: their lines may all lie in one set of the cache
    constexpr int64_t at_once = 6 * packed;
    for (int64_t some = 0; some < K; some += at_once) {
      const int64_t count = smaller(at_once, K - some);
      int64_t t = start, begin = 0;
      const auto row = [&](int64_t r) {
        while (begin + a.sizes[t] <= r) begin += a.sizes[t++];
        return row_of(t, r - begin, some, count);
      };
      for (int64_t r = first; r < last; ++r) {
        F* out = to + some * capacity_f + r * packed;
        const F* from;
#ifdef RNNORM_PAIRS
        F pairs[at_once];
        lower(row(2 * r), count, pairs);
        if (2 * r + 1 < frames) upper(row(2 * r + 1), count, pairs);
        from = pairs;
#else
        from = row(r);
#endif
        int64_t k = 0;
        for (; k + packed <= count; k += packed, out += packed * capacity_f)
          std::memcpy(out, from + k, packed * sizeof(F));
        for (int64_t j = 0; j < count - k; ++j) out[j] = from[k + j];
      }
    }
  }
#ifdef RNNORM_PAIRS
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
    pack_frames(row_of, H, start, stop, rank, team, packed_h);
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
    const T* h = this->h_rows(t - 1) + b * H + first;
    T* seen = own_row + rank * H;
    if (a.reset && a.reset[t * B + b])
      zero(seen, count);
    else if (plan.masked)
      this->drop_hidden(h, t, b, first, count, seen);
    else
      return h;
    return seen;
  }

  // an independent cell's gradients of h and of its weight from the dz of step t
  void own_gradient(Units u, int64_t t, int64_t row, int64_t rank) const {
    T* to = plan.masked ? grad_seen : grad_h;
    const bool adds = this->passes() && !plan.masked;
    for (int64_t b = 0; !Cell::has_product && !adds && b < a.sizes[t]; ++b)
      zero(to + b * columns + u.first, u.width);
    if (!Cell::has_product) return;
    T sum[tile_units] = {};
    for (int64_t b = 0; b < a.sizes[t]; ++b) {
      const T* dz = ring_h + u.first * capacity + (row + b) * u.width;
      const T* h = seen_by_product(t, b, u.first, u.count, rank);
      T* gradient = to + b * columns + u.first;
      for (int64_t k = 0; k < u.count; ++k) {
        sum[k] += dz[k] * h[k];
        const T part = dz[k] * this->own_weight[u.first + k];
        gradient[k] = adds ? gradient[k] + part : part;
      }
      for (int64_t k = u.count; !adds && k < u.width; ++k) gradient[k] = 0;
    }
    for (int64_t k = 0; k < u.count; ++k) grad_w_hh[u.first + k] += sum[k];
  }

  // a thread's memory for one tile of dz as a panel; none if its rows are one slice
  int64_t own_dz_size() const {
    const bool as_it_is = !paired && !Cell::two_products && slice<T, G * int(tile_units)> == G * tile_units;
    return as_it_is ? 0 : G * tile_units * capacity_f;
  }

  template <int U, int Begin, int End>
  const F* as_panel(const Stored<T>* dz, int64_t frames, F* room) const {
    constexpr int C = (End - Begin) * U, S = slice<T, C>, all = G * U;
    // a cast that changes nothing: clang checks the line where factors are pairs, too
    if constexpr (!paired && S == all) return reinterpret_cast<const F*>(dz);
    for (int c = 0; c < C; c += S)
      for (int64_t r = 0; r < frames; r += per_factor, room += S) {
        const Stored<T>* row = dz + r * all + Begin * U + c;
        if constexpr (paired)
          pair_up(row, r + 1 < frames ? row + all : nullptr, S, room);
        else
          std::memcpy(room, row, S * sizeof(T));
      }
    return room - factors(frames) * C;
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
    if constexpr (K < G) weight_gradient<U, K, G>(dz, frames, packed_operands, first, last, rank, to);
  }
  static constexpr int64_t whole_blocks(int64_t k) { return k / packed * packed; }
  // copies the gradient of a tile's rows of W_h to the caller's array
  void unpack_recurrent(Units u) const {
    const Span seen = this->read_by(u);
    const int64_t C = G * u.width, begin = whole_blocks(seen.first);
    const T* panel = grad_w_hh + G * u.first * grad_rows;
    if (paired || seen.count == head)
      return this->unpack_columns(panel + (seen.first - begin) * C, head, u, a.grad_weight_hh);
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
        this->template as_panel<U, Begin, End>(dz, frames, own_dz + rank * own_dz_size());
    const auto* next = reinterpret_cast<const F*>(dz + frames * C);
    for (int64_t k = first; k < last; k += packed, to += packed * C) {
      // the sums that come next are not in cache
      for (int64_t at = 0; at < packed * C; at += 64 / int64_t(sizeof(T)))
        __builtin_prefetch(to + packed * C + at, 1);
      product<T, some>({activations + k * capacity_f, 1, packed, 1, factors(frames), 0},
                       smaller(packed, last - k), panel, to + Begin * U, C, true, next);
    }
  }

  // gradients of W_x and x from the steps [start, stop); dz by tile, `rows` rows each
  void input_gradients(Team& team, int64_t rank, const Stored<T>* dz, int64_t rows, int64_t row,
                       int64_t start, int64_t stop) const {
    const int64_t frames = offset[stop] - offset[start];
    const int64_t begin = tiles.share(rank, team.size()), end = tiles.share(rank + 1, team.size());
    tiles.each(begin, end, [&](auto width, Units u) {
      this->template weight_gradient<decltype(width)::value>(
          dz + G * (u.first * rows + row * u.width), frames, packed_x, 0, I, rank,
          grad_w_ih + G * u.first * I);
    });
    if (!a.grad_x) return;
    const int64_t first = frames * rank / team.size(), last = frames * (rank + 1) / team.size();
    T* some_x = block_x + 64 * first;
    for (int64_t column = 0; column < I && first < last; column += 64) {
      in_panels<64>(dz, rows, row + first, last - first, {0, tiles.count},
                    panel_i + factors(G * P) * column, some_x, 64, false);
      const int64_t width = smaller(64, I - column);
      int64_t t = start, frame = 0;
      for (int64_t r = first; r < last; ++r) {
        while (frame + a.sizes[t] <= r) frame += a.sizes[t++];
        auto* to = static_cast<Stored<T>*>(a.grad_x) + (t * B + r - frame) * I + column;
        copy(some_x + (r - first) * 64, width, to);
      }
    }
  }

  // the steps [start, stop) whose frames fit into the ring
  int64_t chunk_start(int64_t stop) const {
    int64_t start = stop - 1;
    while (start > 0 && offset[stop] - offset[start - 1] <= capacity) --start;
    return start;
  }

  static void zero(T* p, int64_t count) { std::memset(p, 0, size_t(count) * sizeof(T)); }
};

}  // namespace
}  // namespace rnnorm
