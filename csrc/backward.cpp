// the backward pass: gate gradients of a thread's units, a barrier, then its columns of dR W_h
#include "gradients.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct Backward : GradientProducts<Cell, T> {
  using Base = GradientProducts<Cell, T>;
  using Rows = typename Cell::Rows;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::T_, Base::B, Base::I, Base::H,
      Base::P, Base::capacity, Base::columns, Base::ring_h, Base::packed_x, Base::packed_h,
      Base::grad_w_ih, Base::grad_w_hh, Base::grad_h;
  static constexpr int G = Cell::gates;

  bool apart;    // W_x x and W_h h have different gradients
  bool delayed;  // W_x x's is only known when all frames are
  int64_t room;
  T *panel_x, *ring_x, *all_x, *own_x, *grad_c, *gate, *grad_cell, *own_c, *affines;
  T *sum_x, *sum_h, *dot_x, *dot_h, *sum_c, *dot_c, *sum_peephole;

  explicit Backward(const rnnorm_layer& args) : Base(args) {
    const rnnorm_site &x = a.site[RNNORM_INPUT], &h = a.site[RNNORM_HIDDEN];
    apart = Cell::separate || (!plan.fused && (x.scope || h.scope));
    delayed = plan.whole && this->takes(x, 0);
    room = this->affine_room(x, G) + this->affine_room(h, G) +
           this->affine_room(a.site[RNNORM_CELL], 1);
  }

  void take(Arena& arena) {
    Base::take(arena);
    panel_x = arena.take<T>(plan.recompute ? G * P * I : 0);
    own_x = arena.take<T>(plan.recompute ? G * this->own_size() : 0);
    ring_x = apart && !delayed ? arena.take<T>(G * P * capacity) : ring_h;
    all_x = arena.take<T>(delayed ? G * P * plan.frames : 0);
    grad_c = arena.take<T>(Cell::has_cell ? B * P : 0);
    gate = arena.take<T>(Cell::has_cell ? this->own_size() : 0);
    grad_cell = arena.take<T>(Cell::has_cell ? this->own_size() : 0);
    own_c = arena.take<T>(this->by_row(RNNORM_CELL) ? this->own_size() : 0);
    for (int which = 0; which < RNNORM_SITES; ++which) this->take_rows(arena, which, B);
    affines = arena.take<T>(a.threads * room);
    for (T** p : {&sum_x, &sum_h, &dot_x, &dot_h}) *p = arena.take<T>(G * P);
    for (T** p : {&sum_c, &dot_c}) *p = arena.take<T>(P);
    sum_peephole = arena.take<T>(Cell::has_cell ? RNNORM_PEEPHOLES * P : 0);
  }

  const T* kept(const void* saved, int columns, Units u, int64_t t) const {
    return static_cast<const T*>(saved) + columns * (plan.frames * u.first + offset[t] * u.width);
  }

  // adds this step's sums of one site, and takes its gradient back through the normalisation
  template <int C>
  void through_site(const rnnorm_site& site, int64_t t, const T* dy, const T* x,
                    const Affine<T>& by, int64_t n, T* total, T* total_dot, T* dx) const {
    T sum[C], dot[C];
    if (!site.scope) {
      plain_sums<T, C>(dy, n, sum);
      if (dx != dy) std::memcpy(dx, dy, size_t(n * C) * sizeof(T));
    } else {
      gradient_sums<T, C>(dy, x, by, n, sum, dot);
      for (int c = 0; c < C; ++c) total_dot[c] += dot[c];
      if (this->takes(site, t))
        batch_gradient<T, C>(dy, x, by, n, sum, dot, dx);
      else
        constant_gradient<T, C>(dy, by, n, dx);
    }
    for (int c = 0; c < C; ++c) total[c] += sum[c];
  }

  // where a tile lies at step t; `row` is the step's first in the ring
  template <int U>
  Step<T> tile_step(Units u, int64_t t, int64_t row, int64_t rank, Units next,
                    int64_t next_t) const {
    const rnnorm_site *x_site = &a.site[RNNORM_INPUT], *h_site = &a.site[RNNORM_HIDDEN],
                      *c_site = &a.site[RNNORM_CELL];
    const int64_t at = G * u.first;
    const bool more = next_t >= 0;
    const T* next_h = more ? kept(a.saved_h, G, next, next_t) : nullptr;
    const T* next_x = more && a.saved_x ? kept(a.saved_x, G, next, next_t) : nullptr;
    // of c, step t reads the value before it
    const T* next_c = next_t > 0 && a.saved_c ? kept(a.saved_c, 1, next, next_t - 1) : nullptr;
    T* spare = affines + rank * room;
    Step<T> s{};
    s.n = a.sizes[t];
    s.units = u.count;
    s.h = {kept(a.saved_h, G, u, t), this->template affine<U, G>(*h_site, t, u, this->gamma_h + at,
                            this->shift_h + at, spare), next_h};
    spare += this->affine_room(*h_site, G);
    if (!plan.fused)
      s.x = {plan.recompute ? own_x + G * this->own(u, rank) : kept(a.saved_x, G, u, t),
             this->template affine<U, G>(*x_site, t, u, this->gamma_x + at, this->shift_x + at,
                                         spare), next_x};
    spare += this->affine_room(*x_site, G);
    s.h_before = this->h_rows(t - 1) + u.first;
    s.h_after = const_cast<T*>(this->h_rows(t)) + u.first;
    s.h_stride = H;
    if (const T* from = static_cast<const T*>(a.grad_output)) {
      s.grad_output = from + t * B * H + u.first;
      s.next_grad_output = more ? from + next_t * B * H + next.first : nullptr;
    }
    s.grad_h = grad_h + u.first;
    s.grad_h_stride = columns;
    s.grad_zh = ring_h + G * (u.first * capacity + row * u.width);
    s.grad_zx = Cell::separate ? into_x(u, t, row) : s.grad_zh;
    if constexpr (Cell::has_cell) {
      s.gate = gate + this->own(u, rank);
      s.grad_cell = grad_cell + this->own(u, rank);
      const void* carried = a.mask[RNNORM_ZONE_C].drawn ? a.saved_carried : a.saved_c;
      s.c_before = t == 0 ? this->c_first + B * u.first : kept(carried, 1, u, t - 1);
      s.c_after = const_cast<T*>(kept(a.saved_c, 1, u, t));
      s.cell = {this->by_row(RNNORM_CELL) ? own_c + this->own(u, rank) : kept(a.saved_c, 1, u, t),
                this->template affine<U, 1>(*c_site, t, u, this->gamma_c + u.first,
                                            this->beta_c + u.first, spare), next_c};
      s.grad_c = grad_c + B * u.first;
    }
    this->add_extra(s, u, t);
    return s;
  }
  // where the gradient of a tile's W_x x goes
  T* into_x(Units u, int64_t t, int64_t row) const {
    return delayed ? all_x + G * (u.first * plan.frames + offset[t] * u.width)
                   : ring_x + G * (u.first * capacity + row * u.width);
  }

  // what forward has not kept
  template <int U>
  void again(const Step<T>& s, Units u, int64_t t) const {
    if (plan.recompute) {
      T* x = const_cast<T*>(s.x.raw);
      this->template input_product<U>(t, t + 1, panel_x + G * u.first * I, x);
      if (this->by_row(RNNORM_INPUT)) by_its_rows<Rows, U>(RNNORM_INPUT, x, t, x);
    }
    if (this->by_row(RNNORM_CELL))
      by_its_rows<Blocks<1>, U>(RNNORM_CELL, kept(a.saved_c, 1, u, t), t,
                                const_cast<T*>(s.cell.raw));
  }

  // from h to the normalised c
  template <int U>
  void to_cell(const Step<T>& s, Units u) const {
    if constexpr (Cell::has_cell) {
      either(plan.fused, [&](auto fused) {
        either(plan.extra, [&](auto extra) {
          Cell::template output_backward<T, U, decltype(fused)::value, decltype(extra)::value>(s);
        });
      });
      if (this->by_row(RNNORM_CELL))
        add_sums<Blocks<1>, U>(RNNORM_CELL, s.grad_cell, s.cell, u, sum_c + u.first,
                               dot_c + u.first, s.n);
    }
  }

  // from there to the terms
  template <int U>
  void to_terms(const Step<T>& s, Units u, int64_t t, int64_t rank) const {
    const int64_t at = G * u.first;
    if constexpr (Cell::has_cell) {
      if (a.site[RNNORM_CELL].scope)
        through<Blocks<1>, U>(RNNORM_CELL, t, rank, s.grad_cell, s.cell, s.n, sum_c + u.first,
                              dot_c + u.first, s.grad_cell);
    }
    either(plan.fused, [&](auto fused) {
      either(plan.extra, [&](auto extra) {
        Cell::template backward<T, U, decltype(fused)::value, decltype(extra)::value>(s);
      });
    });
    if constexpr (Cell::has_cell) add_peepholes<U>(s, u);
    if (this->by_row(RNNORM_INPUT))
      add_sums<Rows, U>(RNNORM_INPUT, s.grad_zx, s.x, u, sum_x + at, dot_x + at, s.n);
    if (this->by_row(RNNORM_HIDDEN))
      add_sums<Rows, U>(RNNORM_HIDDEN, s.grad_zh, s.h, u, sum_h + at, dot_h + at, s.n);
  }

  // from the terms to the products
  template <int U>
  void to_products(const Step<T>& s, Units u, int64_t t, int64_t row, int64_t rank) const {
    const int64_t at = G * u.first;
    T* to = into_x(u, t, row);
    // the input's first: the hidden term's is taken in place
    if (delayed) {
      if (to != s.grad_zx) std::memcpy(to, s.grad_zx, size_t(s.n * G * U) * sizeof(T));
    } else if (apart) {
      through<Rows, U>(RNNORM_INPUT, t, rank, s.grad_zx, s.x, s.n, sum_x + at, dot_x + at, to);
    }
    through<Rows, U>(RNNORM_HIDDEN, t, rank, s.grad_zh, s.h, s.n, sum_h + at, dot_h + at,
                     s.grad_zh);
  }

  // normalises a tile's rows as forward has
  template <class R, int U>
  void by_its_rows(int which, const T* from, int64_t t, T* to) const {
    standardise<R, T, U>(from, a.sizes[t], saved_rows(a.site[which].mean, t),
                         saved_rows(a.site[which].var, t), plan.frames, to);
  }
  const T* saved_rows(const void* statistic, int64_t t) const {
    return static_cast<const T*>(statistic) + offset[t];
  }

  // the sums over a tile's columns for the gradients of gamma and shift, and over its rows
  template <class R, int U>
  void add_sums(int which, const T* dy, const Term<T>& z, Units u, T* total, T* total_dot,
                int64_t n) const {
    constexpr int C = R::all * U;
    T sum[C], dot[C];
    gradient_sums<T, C>(dy, z.raw, z.by, n, sum, dot);
    for (int c = 0; c < C; ++c) total[c] += sum[c], total_dot[c] += dot[c];
    row_gradient_sums<R, T, U>(dy, z.raw, z.by.scale, n, u, this->row_site[which].parts);
  }

  // the sums for the gradients of the peepholes
  template <int U>
  void add_peepholes(const Step<T>& s, Units u) const {
    const int gate[] = {0, 1, 3};
    for (int which = 0; which < RNNORM_PEEPHOLES; ++which) {
      if (!a.grad_peephole[which]) continue;
      const T *dz = s.grad_zh + gate[which] * U,
              *c = which == RNNORM_PEEPHOLE_O ? s.c_after : s.c_before;
      T sum[U];
      T* const to[1] = {sum};
      column_sums<T, U, 1>(s.n, to, [&](int64_t r, int k, auto* value) {
        constexpr int W = largest_power(U, widest<T>);
        value[0] = load<W>(dz + r * G * U + k) * load<W>(c + r * U + k);
      });
      for (int k = 0; k < U; ++k) sum_peephole[which * P + u.first + k] += sum[k];
    }
  }

  // the gradient of a site, given that of what it returns
  template <class R, int U>
  void through(int which, int64_t t, int64_t rank, const T* dy, const Term<T>& z, int64_t n,
               T* total, T* total_dot, T* dx) const {
    if (!this->by_row(which))
      return through_site<R::all * U>(a.site[which], t, dy, z.raw, z.by, n, total, total_dot, dx);
    const auto& site = this->row_site[which];
    row_gradient<R, T, U>(dy, z.raw, z.by.scale, n, saved_rows(a.site[which].var, t), plan.frames,
                          site.first(rank), site.second(rank), site.parts.capacity, dx);
  }

  template <class R>
  void merge_sums(int which, int64_t n, int64_t rank) const {
    const auto& site = this->row_site[which];
    if (this->by_row(which))
      merge_gradient_sums<R>(site.parts, tiles, n, site.first(rank), site.second(rank));
  }

  // a row's gradient needs the tiles of all threads
  template <class Team>
  void step_by_rows(Team& team, int64_t rank, int64_t first, int64_t last, int64_t t,
                    int64_t row) const {
    const auto each_tile = [&](auto body) {
      for (int64_t i = first; i < last; ++i)
        with_width(tiles[i].width, [&](auto width) {
          constexpr int U = decltype(width)::value;
          body(width, tiles[i], tile_step<U>(tiles[i], t, row, rank, tiles[i], t - 1));
        });
    };
    each_tile([&](auto width, Units u, const Step<T>& s) {
      constexpr int U = decltype(width)::value;
      again<U>(s, u, t);
      to_cell<U>(s, u);
    });
    if (this->by_row(RNNORM_CELL)) {
      team.barrier();
      merge_sums<Blocks<1>>(RNNORM_CELL, a.sizes[t], rank);
    }
    each_tile([&](auto width, Units u, const Step<T>& s) {
      to_terms<decltype(width)::value>(s, u, t, rank);
    });
    team.barrier();
    merge_sums<Rows>(RNNORM_INPUT, a.sizes[t], rank);
    merge_sums<Rows>(RNNORM_HIDDEN, a.sizes[t], rank);
    each_tile([&](auto width, Units u, const Step<T>& s) {
      to_products<decltype(width)::value>(s, u, t, row, rank);
    });
  }

  template <class Team>
  void run_thread(Team& team, int64_t rank) {
    const int64_t first = tiles.share(rank, team.size()), last = tiles.share(rank + 1, team.size());
    const int64_t from = first * tile_units, to = smaller(columns, last * tile_units);
    prepare(team, rank, first, last, from, to);
    team.barrier();
    for (int64_t stop = T_, start; stop > 0; stop = start) {
      start = this->chunk_start(stop);
      for (int64_t t = stop - 1; t >= start; --t) {
        const int64_t row = offset[t] - offset[start];
        if (plan.rows) {
          step_by_rows(team, rank, first, last, t, row);
        } else {
          for (int64_t i = first; i < last; ++i) {
            const int64_t following = i + 1 < last ? i + 1 : first;
            with_width(tiles[i].width, [&](auto width) {
              constexpr int U = decltype(width)::value;
              const Step<T> s = tile_step<U>(tiles[i], t, row, rank, tiles[following],
                                             t - (following == first));
              again<U>(s, tiles[i], t);
              to_cell<U>(s, tiles[i]);
              to_terms<U>(s, tiles[i], t, rank);
              to_products<U>(s, tiles[i], t, row, rank);
            });
          }
        }
        team.barrier();
        this->recurrent_gradient(t, row, from, to);
      }
      this->pack_hidden(start, stop, rank, team.size());
      if (!delayed) this->pack_inputs(start, stop, rank, team.size());
      team.barrier();
      for (int64_t i = first; i < last; ++i) {
        const Units u = tiles[i];
        with_width(u.width, [&](auto width) {
          this->template weight_gradient<decltype(width)::value>(
              u, ring_h + G * u.first * capacity, offset[stop] - offset[start], packed_h, H,
              rank, grad_w_hh);
        });
      }
      if (!delayed) this->input_gradients(team, rank, ring_x, capacity, 0, start, stop);
      team.barrier();
    }
    if (delayed) whole_input(team, rank, first, last);
    finish(first, last);
  }

  template <class Team>
  void prepare(Team& team, int64_t rank, int64_t first, int64_t last, int64_t from, int64_t to) {
    for (int64_t i = first; i < last; ++i) {
      const Units u = tiles[i];
      this->prepare_tile(u);
      if (plan.recompute)
        with_width(u.width, [&](auto width) {
          this->template pack_columns<G * decltype(width)::value>(a.weight_ih, I, u,
                                                                  panel_x + G * u.first * I);
        });
      this->zero(grad_w_ih + G * u.first * I, G * u.width * I);
      this->zero(grad_w_hh + G * u.first * H, G * u.width * H);
      for (T* p : {sum_x, sum_h, dot_x, dot_h}) this->zero(p + G * u.first, G * u.width);
      for (T* p : {sum_c, dot_c}) this->zero(p + u.first, u.width);
      for (int which = 0; Cell::has_cell && which < RNNORM_PEEPHOLES; ++which)
        this->zero(sum_peephole + which * P + u.first, u.width);
      const T *h_n = static_cast<const T*>(a.grad_h_n), *c_n = static_cast<const T*>(a.grad_c_n);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t k = 0; k < u.width; ++k) {
          const int64_t at = b * H + u.first + k;
          grad_h[b * columns + u.first + k] = h_n && k < u.count ? h_n[at] : T(0);
          if (Cell::has_cell)
            grad_c[B * u.first + b * u.width + k] = c_n && k < u.count ? c_n[at] : T(0);
        }
    }
    this->pack_weights(team, rank, from, to);
  }

  // sequence scope: the statistics depend on all frames, and so does every gradient
  template <class Team>
  void whole_input(Team& team, int64_t rank, int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; ++i) {
      const Units u = tiles[i];
      with_width(u.width, [&](auto width) {
        constexpr int U = decltype(width)::value;
        const int64_t at = G * u.first;
        T* dz = all_x + at * plan.frames;
        const Affine<T> by = this->template affine<U, G>(a.site[RNNORM_INPUT], 0, u, this->gamma_x + at,
                                          this->shift_x + at, affines + rank * room);
        this->template through_site<G * U>(a.site[RNNORM_INPUT], 0, dz, kept(a.saved_x, G, u, 0),
                                           by, plan.frames, sum_x + at, dot_x + at, dz);
      });
    }
    for (int64_t stop = T_, start; stop > 0; stop = start) {
      start = this->chunk_start(stop);
      this->pack_inputs(start, stop, rank, team.size());
      team.barrier();
      this->input_gradients(team, rank, all_x, plan.frames, offset[start], start, stop);
      team.barrier();
    }
  }

  void finish(int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; ++i) {
      const Units u = tiles[i];
      const int64_t at = G * u.first;
      this->unpack_columns(grad_w_ih + at * I, I, u, a.grad_weight_ih);
      this->unpack_columns(grad_w_hh + at * H, H, u, a.grad_weight_hh);
      this->scatter((apart ? sum_x : sum_h) + at, u, a.grad_bias_ih);
      this->scatter(sum_h + at, u, a.grad_bias_hh);
      this->scatter(dot_x + at, u, a.site[RNNORM_INPUT].grad_gamma);
      this->scatter(dot_h + at, u, a.site[RNNORM_HIDDEN].grad_gamma);
      const rnnorm_site& cell = a.site[RNNORM_CELL];
      for (int64_t k = 0; k < u.count; ++k) {
        if (cell.grad_gamma) static_cast<T*>(cell.grad_gamma)[u.first + k] = dot_c[u.first + k];
        if (cell.grad_beta) static_cast<T*>(cell.grad_beta)[u.first + k] = sum_c[u.first + k];
      }
      for (int which = 0; which < RNNORM_PEEPHOLES; ++which)
        if (T* to = static_cast<T*>(a.grad_peephole[which]))
          std::memcpy(to + u.first, sum_peephole + which * P + u.first, size_t(u.count) * sizeof(T));
      for (int64_t b = 0; b < B; ++b)
        for (int64_t k = 0; k < u.count; ++k) {
          const int64_t to = b * H + u.first + k;
          static_cast<T*>(a.grad_h0)[to] = grad_h[b * columns + u.first + k];
          if (Cell::has_cell)
            static_cast<T*>(a.grad_c0)[to] = grad_c[B * u.first + b * u.width + k];
        }
    }
  }

  void prefer_huge_pages() const {
    rnnorm_prefer_huge_pages(a.grad_x, T_ * B * I * int64_t(sizeof(T)));
  }
};

}  // namespace
}  // namespace rnnorm

extern "C" int RNNORM_BACKWARD(const rnnorm_layer* layer) {
  return rnnorm::run_layer<rnnorm::Backward>(*layer);
}
