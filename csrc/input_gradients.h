// the gradients of x and of the h of the step before: dz times the weights
#pragma once
#include "weight_gradients.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct InputGradients : WeightGradients<Cell, T> {
  using Base = WeightGradients<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::B, Base::I, Base::H, Base::P,
      Base::R, Base::head, Base::reads, Base::capacity, Base::packed_x, Base::ring_h,
      Base::stored_h, Base::grad_w_ih, Base::grad_w_hh, Base::zero;
  using typename Base::Span;
  using F = Factor<T>;
  static constexpr int G = Cell::gates;
  static constexpr int64_t panel_tiles = 8;  // this many tiles of W, 64 columns wide, fit in cache

  int64_t columns;  // columns of the gradient of h: R rounded up to whole vectors
  F *panel_t, *panel_i;  // W_h and W_x as packed by pack_rows
  T* grad_h;             // gradient of h at one step, (B, columns)
  T* block_x;            // 64 columns of the gradient of x
  T* grad_seen;     // gradient of the masked h
  T* grad_operand;  // gradient of what a second product multiplies at one step

  explicit InputGradients(const rnnorm_layer& args) : Base(args) {
    columns = quotient_up(R, tile_units) * tile_units;
  }

  void take(Arena& arena) {
    Base::take(arena);
    panel_t = arena.take<F>(Cell::independent ? 0 : factors(G * P) * columns);
    panel_i = arena.take<F>(a.grad_x ? factors(G * P) * quotient_up(I, 64) * 64 : 0);
    grad_h = arena.take<T>(B * columns);
    block_x = arena.take<T>(a.grad_x ? 64 * capacity : 0);
    grad_operand = arena.take<T>(Cell::two_products ? B * columns : 0);
    grad_seen = arena.take<T>(plan.masked ? B * columns : 0);
  }

  // a thread's columns [from, to) of W_h, those of its units of h, and its share of W_x's, for
  // in_panels
  void pack_weights(Team& team, int64_t rank, int64_t from, int64_t to) const {
    each_panel(from, Cell::independent ? from : to, [&](int64_t start, auto width) {
      constexpr int N = decltype(width)::value;
      constexpr int K = Cell::first_gates;
      this->template pack_rows<N>(a.weight_hh, reads, head, readers(start, N), start,
                                  panel_t + factors(K * P) * start, 0, K);
      if (K < G)
        this->template pack_rows<N>(a.weight_hh, reads, head, readers(start, N), start,
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

  // the gradient of the units [first, last) of the h before step t, from the dz of step t
  void recurrent_gradient(int64_t t, int64_t row, int64_t first, int64_t last,
                          int64_t rank) const {
    const bool passes = this->passes();
    T* to = plan.masked ? grad_seen : grad_h;
    if constexpr (Cell::independent) {
      for (int64_t i = first / tile_units; i < last / tile_units; ++i)
        independent_gradient(tiles[i], t, row, rank);
    } else {
      each_panel(first, last, [&](int64_t start, auto width) {
        constexpr int N = decltype(width)::value;
        this->template in_panels<N>(stored_h, capacity, row, a.sizes[t], readers(start, N),
                                    panel_t + factors(Cell::first_gates * P) * start, to + start,
                                    columns, passes && !plan.masked, 0, Cell::first_gates);
      });
    }
    const int64_t real = larger(0, smaller(R, last) - first);
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
              if (k >= u.count || real <= 0) continue;
              if constexpr (paired)
                pair_up<T>(row, k + 1 < u.count ? row + K : nullptr, real, panel + from - column);
              else
                std::memcpy(panel + from - column, row, size_t(real) * sizeof(F));
            }
        }
      }
    }
  }
  // an independent cell's gradients of h and of its weight from the dz of step t
  void independent_gradient(Units u, int64_t t, int64_t row, int64_t rank) const {
    T* to = plan.masked ? grad_seen : grad_h;
    const bool adds = this->passes() && !plan.masked;
    for (int64_t b = 0; !Cell::has_product && !adds && b < a.sizes[t]; ++b)
      zero(to + b * columns + u.first, u.width);
    if (!Cell::has_product) return;
    T sum[tile_units] = {};
    for (int64_t b = 0; b < a.sizes[t]; ++b) {
      const T* dz = this->in_ring(ring_h, u, row) + b * u.width;
      const T* h = this->seen_by_product(t, b, u.first, u.count, rank);
      T* gradient = to + b * columns + u.first;
      for (int64_t k = 0; k < u.count; ++k) {
        sum[k] += dz[k] * h[k];
        const T part = dz[k] * this->unit_weight[u.first + k];
        gradient[k] = adds ? gradient[k] + part : part;
      }
      for (int64_t k = u.count; !adds && k < u.width; ++k) gradient[k] = 0;
    }
    for (int64_t k = 0; k < u.count; ++k) grad_w_hh[u.first + k] += sum[k];
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
};

}  // namespace
}  // namespace rnnorm
