// the backward pass: at each step the gradients of the gates of a thread's units, a barrier, then that
// of its units of the h before, from the gates of all threads and W_h. Another barrier before each
// statistic's sums that have parts of several threads, for a second product and for a projected h
#include "pass.h"
#include "projection.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct Backward : BackwardProjection<Cell, T> {
  using Base = BackwardProjection<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::T_, Base::B, Base::I, Base::H,
      Base::P, Base::FI, Base::capacity, Base::columns, Base::ring_h, Base::stored_h,
      Base::delayed, Base::stored_x, Base::grad_w_ih, Base::grad_w_hh, Base::grad_h, Base::tile_of,
      Base::into_x, Base::in_ring;
  using F = Factor<T>;
  static constexpr int G = Cell::gates;
  // whether the equations of a step are computed in two halves
  static constexpr bool halves = Cell::has_cell || Cell::two_products;

  F* panel_x;                // W_x, where W_x x is computed again
  T *scratch_x, *scratch_c;  // W_x x and the normalised c of a tile, computed again
  T* grad_states;            // gradients of the states that the next step reads
  T *halfway, *grad_cell;    // those of Step

  using Base::Base;

  void take(Arena& arena) {
    Base::take(arena);
    panel_x = arena.take<F>(plan.recompute ? G * P * FI : 0);
    scratch_x = arena.take<T>(plan.recompute ? G * this->scratch_size() : 0);
    grad_states = arena.take<T>(Cell::states * B * P);
    halfway = arena.take<T>(halves ? Cell::halfway * this->scratch_size() : 0);
    grad_cell = arena.take<T>(Cell::has_cell ? this->scratch_size() : 0);
    scratch_c = arena.take<T>(this->by_row(RNNORM_CELL) ? this->scratch_size() : 0);
    for (int which = 0; which < RNNORM_SITES; ++which) this->take_rows(arena, which, B);
  }

  // the tile at step t; `row` is the step's first row in the ring
  template <int U>
  Step<T> tile_step(Units u, int64_t t, int64_t row, int64_t rank, Units next,
                    int64_t next_t) const {
    const bool more = next_t >= 0;
    const T* next_h = more ? tile_of(a.saved_h, G, next, next_t) : nullptr;
    const T* next_x = more && a.saved_x ? tile_of(a.saved_x, G, next, next_t) : nullptr;
    // step t reads the c of the step before
    const T* next_c = next_t > 0 && a.saved_c ? tile_of(a.saved_c, 1, next, next_t - 1) : nullptr;
    Step<T> s{};
    s.n = a.sizes[t];
    s.units = u.count;
    s.h = {tile_of(a.saved_h, G, u, t), this->template affine<U, RNNORM_HIDDEN>(t, u, rank),
           next_h};
    if (!plan.fused)
      s.x = {plan.recompute ? scratch_x + G * this->scratch_at(u, rank)
                            : tile_of(a.saved_x, G, u, t),
             this->template affine<U, RNNORM_INPUT>(t, u, rank), next_x};
    s.h_stride = H;
    if (this->projects()) {
      s.h_after = static_cast<T*>(a.saved_made) + offset[t] * H + u.first;
      s.grad_h = this->grad_made + u.first;
      s.grad_h_stride = this->made_columns;
    } else {
      s.h_after = const_cast<T*>(this->h_rows(t)) + u.first;
      s.grad_h = grad_h + u.first;
      s.grad_h_stride = columns;
    }
    const T* from = static_cast<const T*>(a.grad_output);
    if (from && !this->projects()) {
      s.grad_output = from + t * B * H + u.first;
      s.next_grad_output = more ? from + next_t * B * H + next.first : nullptr;
    }
    s.grad_zh = in_ring(ring_h, u, row);
    // of two products one's gradient has left its normalisation before the other's is known
    const bool apart = Cell::separate || (Cell::two_products && !plan.fused);
    s.grad_zx = apart ? into_x(u, t, row) : s.grad_zh;
    if (halves) s.halfway = halfway + Cell::halfway * this->scratch_at(u, rank);
    if constexpr (Cell::two_products) {
      s.operand = this->operands + row * H + u.first;
      s.grad_operand = this->grad_operand + u.first;
    }
    if constexpr (Cell::has_cell) {
      s.grad_cell = grad_cell + this->scratch_at(u, rank);
      s.cell = {this->by_row(RNNORM_CELL) ? scratch_c + this->scratch_at(u, rank)
                                           : tile_of(a.saved_c, 1, u, t),
                this->template affine<U, RNNORM_CELL>(t, u, rank), next_c};
    }
    for (int k = 0; k < Cell::states; ++k) {
      State<T>& state = s.state[k];
      state.before = this->state_before(k, u, t);
      state.after = this->saved_state(k, u, t);
      state.grad = grad_states + this->in_states(k, u);
    }
    this->template add_before<U>(s, u, t, rank);
    this->add_extra(s, u, t);
    for (int which = 0; which < Cell::weights; ++which)
      s.grad_peephole[which] =
          this->of_units(a.grad_peephole, which) ? this->sum_peephole + which * P + u.first : nullptr;
    return s;
  }
  // recomputes what forward has not saved
  template <int U>
  void again(const Step<T>& s, Units u, int64_t t) const {
    if (plan.recompute) {
      T* x = const_cast<T*>(s.x.raw);
      this->template input_product<U>(t, t + 1, u, panel_x + G * u.first * FI, x);
      if (this->by_row(RNNORM_INPUT)) this->template by_its_rows<U>(RNNORM_INPUT, x, t, x);
    }
    if (this->by_row(RNNORM_CELL))
      this->template by_its_rows<U>(RNNORM_CELL, tile_of(a.saved_c, 1, u, t), t,
                                    const_cast<T*>(s.cell.raw));
  }

  // the gradient from h to the cell site's output
  template <int U>
  void to_cell(const Step<T>& s, Units u, int64_t t) const {
    for (int k = 0; a.grad_all_c && k < Cell::states; ++k) {
      const T* every = static_cast<const T*>(a.grad_all_c) + ((k * T_ + t) * B) * H + u.first;
      for (int64_t r = 0; r < s.n; ++r)
        for (int64_t j = 0; j < u.count; ++j) s.state[k].grad[r * U + j] += every[r * H + j];
    }
    if constexpr (Cell::has_cell) {
      either(plan.fused, plan.extra, [&](auto fused, auto extra) {
        Cell::template output_backward<T, U, decltype(fused)::value, decltype(extra)::value>(s);
      });
      clear_beyond<U>(s.grad_cell, s.n, u);
      if (this->across(RNNORM_CELL, t))
        this->template add_sums<RNNORM_CELL, U>(t, s.grad_cell, s.cell, u, s.n);
    }
  }

  // the gradient from h to the second product's term
  template <int U>
  void to_second(const Step<T>& s, Units u, int64_t t) const {
    either(plan.fused, plan.extra, [&](auto fused, auto extra) {
      Cell::template second_backward<T, U, decltype(fused)::value, decltype(extra)::value>(s);
    });
    // of the other gates as well, which are not known yet
    clear_beyond<U, G>(s.grad_zh, s.n, u);
    if (this->by_row(RNNORM_HIDDEN))
      this->template add_sums<RNNORM_HIDDEN, U, 1>(t, s.grad_zh, s.h, u, s.n);
  }

  // the gradient from the cell site's output to the terms
  template <int U>
  void to_terms(const Step<T>& s, Units u, int64_t t, int64_t rank) const {
    if constexpr (Cell::has_cell) {
      if (a.site[RNNORM_CELL].scope)
        this->template through<RNNORM_CELL, U>(t, rank, s.grad_cell, s.cell, u, s.n, s.grad_cell);
    }
    either(plan.fused, plan.extra, [&](auto fused, auto extra) {
      Cell::template backward<T, U, decltype(fused)::value, decltype(extra)::value>(s);
    });
    // other threads may still read those of a second product
    clear_beyond<U, G>(s.grad_zh, s.n, u, Cell::first_gates);
    if (s.grad_zx != s.grad_zh) clear_beyond<U, G>(s.grad_zx, s.n, u);
    const uint8_t* anew = Cell::states ? this->anew(t) : nullptr;
    for (int64_t r = 0; anew && r < s.n; ++r)
      for (int k = 0; anew[r] && k < Cell::states; ++k) this->zero(s.state[k].grad + r * U, U);
    if (this->by_row(RNNORM_INPUT))
      this->template add_sums<RNNORM_INPUT, U>(t, s.grad_zx, s.x, u, s.n);
    if (this->across(RNNORM_HIDDEN, t))
      this->template add_sums<RNNORM_HIDDEN, U>(t, s.grad_zh, s.h, u, s.n);
  }

  // the gradient from the terms to the products
  template <int U>
  void to_products(const Step<T>& s, Units u, int64_t t, int64_t row, int64_t rank) const {
    T* to = into_x(u, t, row);
    // the input term first: the hidden term's gradient overwrites its own input
    if (delayed) {
      if (to != s.grad_zx) std::memcpy(to, s.grad_zx, size_t(s.n * G * U) * sizeof(T));
    } else if (!plan.fused) {
      this->template through<RNNORM_INPUT, U>(t, rank, s.grad_zx, s.x, u, s.n, to);
      this->store_rows(to, s.n, u, row, stored_x);
    }
    this->template through<RNNORM_HIDDEN, U>(t, rank, s.grad_zh, s.h, u, s.n, s.grad_zh);
    this->store_rows(s.grad_zh, s.n, u, row, stored_h, 0, Cell::first_gates);
  }

  // sums that need the tiles of all threads or processes; false if an exchange has failed
  bool step_across(Team& team, int64_t rank, int64_t first, int64_t last, int64_t t,
                   int64_t row) {
    const auto each_tile = [&](auto body) {
      tiles.each(first, last, [&](auto width, Units u) {
        body(width, u, tile_step<decltype(width)::value>(u, t, row, rank, u, t - 1));
      });
    };
    each_tile([&](auto width, Units u, const Step<T>& s) {
      constexpr int U = decltype(width)::value;
      again<U>(s, u, t);
      to_cell<U>(s, u, t);
    });
    if (!this->meet(team, rank, t, RNNORM_CELL, RNNORM_CELL)) return false;
    this->merge_sums(RNNORM_CELL, a.sizes[t], rank);
    if constexpr (Cell::two_products) {
      each_tile([&](auto width, Units u, const Step<T>& s) {
        to_second<decltype(width)::value>(s, u, t);
      });
      if (!this->meet(team, rank, t, RNNORM_HIDDEN, RNNORM_HIDDEN)) return false;
      this->template merge_sums<1>(RNNORM_HIDDEN, a.sizes[t], rank);
      each_tile([&](auto width, Units u, const Step<T>& s) {
        this->template through<RNNORM_HIDDEN, decltype(width)::value, 1>(t, rank, s.grad_zh, s.h, u,
                                                                         s.n, s.grad_zh);
        this->store_rows(s.grad_zh, s.n, u, row, stored_h, Cell::first_gates, G);
      });
      team.barrier();
      this->operand_gradient(t, row, first * tile_units, last * tile_units);
    }
    each_tile([&](auto width, Units u, const Step<T>& s) {
      to_terms<decltype(width)::value>(s, u, t, rank);
    });
    const int from = delayed ? RNNORM_HIDDEN : RNNORM_INPUT;
    if (!this->meet(team, rank, t, from, RNNORM_HIDDEN)) return false;
    this->merge_sums(RNNORM_INPUT, a.sizes[t], rank);
    this->merge_sums(RNNORM_HIDDEN, a.sizes[t], rank);
    each_tile([&](auto width, Units u, const Step<T>& s) {
      to_products<decltype(width)::value>(s, u, t, row, rank);
    });
    return true;
  }

  void run_thread(Team& team, int64_t rank) {
    const int64_t first = tiles.share(rank, team.size()), last = tiles.share(rank + 1, team.size());
    const int64_t from = first * tile_units, to = last * tile_units;
    const auto own = this->share(rank, team.size());
    prepare(first, last);
    this->read_last(own);
    this->pack_weights(team, rank, own.first, own.last);
    this->pack_projection(from, to);
    this->pad_inputs(rank, team.size());
    team.barrier();
    for (int64_t stop = T_, start; stop > 0; stop = start) {
      start = this->chunk_start(stop);
      for (int64_t t = stop - 1; t >= start; --t) {
        const int64_t row = offset[t] - offset[start];
        if (this->projects()) {
          this->gather_projected(t, own);
          team.barrier();
          this->through_projection(t, from, to);
        }
        if (plan.across) {
          if (!step_across(team, rank, first, last, t, row)) return;
        } else {
          for (int64_t i = first; i < last; ++i) {
            const int64_t following = i + 1 < last ? i + 1 : first;
            with_width(tiles[i].width, [&](auto width) {
              constexpr int U = decltype(width)::value;
              const Step<T> s = tile_step<U>(tiles[i], t, row, rank, tiles[following],
                                             t - (following == first));
              again<U>(s, tiles[i], t);
              to_cell<U>(s, tiles[i], t);
              to_terms<U>(s, tiles[i], t, rank);
              to_products<U>(s, tiles[i], t, row, rank);
            });
          }
        }
        if (this->meets_each_step()) team.barrier();
        this->recurrent_gradient(t, row, own.first, own.last, rank);
      }
      if (!Cell::independent) this->pack_hidden(start, stop, rank, team.size());
      if (Cell::two_products) this->pack_operands(start, stop, rank, team.size());
      if (!delayed) this->pack_inputs(start, stop, rank, team.size());
      team.barrier();
      tiles.each(first, Cell::independent ? first : last, [&](auto width, Units u) {
        this->template recurrent_weight_gradient<decltype(width)::value>(
            u, offset[stop] - offset[start], rank);
      });
      if (!delayed) this->input_gradients(team, rank, stored_x, capacity, 0, start, stop);
      team.barrier();
    }
    if (delayed && !this->delayed_input(team, rank, first, last)) return;
    finish(first, last);
    this->write_first(own);
  }

  void prepare(int64_t first, int64_t last) {
    tiles.each(first, last, [&](auto width, Units u) {
      this->prepare_tile(u);
      if (plan.recompute)
        pack_columns<T, G * decltype(width)::value>(a.weight_ih, H, I, u,
                                                    panel_x + G * u.first * FI, 0, G);
      this->zero(grad_w_ih + G * u.first * I, G * u.width * I);
      if (Cell::independent)
        this->zero(grad_w_hh + u.first, u.width);
      else
        this->zero(grad_w_hh + G * u.first * this->grad_rows, G * u.width * this->grad_rows);
      this->zero_sums(u);
      this->gather_states(a.grad_c_n, u, grad_states);
    });
  }

  void finish(int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; ++i) {
      const Units u = tiles[i];
      const int64_t at = G * u.first;
      unpack_columns<G>(grad_w_ih + at * I, H, I, u, a.grad_weight_ih);
      if (Cell::independent)
        this->scatter(grad_w_hh + u.first, u, a.grad_weight_hh, 1);
      else
        this->unpack_recurrent(u);
      this->scatter_sums(u);
      for (int k = 0; a.grad_c0 && k < Cell::states; ++k)
        this->scatter(grad_states + this->in_states(k, u), u,
                      static_cast<T*>(a.grad_c0) + k * B * H, B);
    }
  }

  void prefer_huge_pages() const {
    rnnorm_prefer_huge_pages(a.grad_x, T_ * B * I * int64_t(sizeof(Stored<T>)));
  }
};

}  // namespace
}  // namespace rnnorm

extern "C" int RNNORM_BACKWARD(const rnnorm_layer* layer) {
  return rnnorm::run_layer<rnnorm::Backward>(*layer);
}
