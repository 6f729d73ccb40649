// the forward pass: a thread owns hidden units for the whole batch. One barrier a step, and another
// before each statistic that has parts of several threads, before a second product and a projection
#include "pass.h"
#include "projection.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct Forward : ForwardProjection<Cell, T> {
  using Base = ForwardProjection<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::T_, Base::B, Base::H, Base::P,
      Base::R, Base::tile_of, Base::steps_at_once, Base::x_terms, Base::h_terms, Base::merge_rows;
  static constexpr int G = Cell::gates;

  T* scratch_c;  // the normalised c of one tile, by thread
  T* made_c;     // the new c, where the next step reads another and none is saved
  T* halfway;    // what the second half of a step reads of the first

  using Base::Base;

  void take(Arena& arena) {
    Base::take(arena);
    this->states_now = arena.take<T>(a.saved_c ? 0 : Cell::states * P * B);
    halfway = arena.take<T>(Cell::has_cell ? Cell::halfway * this->scratch_size() : 0);
    made_c = arena.take<T>(this->carries() && !a.saved_c ? this->scratch_size() : 0);
    scratch_c = arena.take<T>(this->by_row(RNNORM_CELL) ? a.threads * B * tile_units : 0);
  }

  // the equations of one tile up to what the second product multiplies
  template <int U>
  void make_operand(Units u, int64_t t, int64_t rank) const {
    const int64_t n = a.sizes[t];
    T *x = plan.fused ? nullptr : x_terms(u, t, rank), *h = h_terms(u, t, rank);
    if (this->by_row(RNNORM_INPUT)) this->template by_its_rows<U>(RNNORM_INPUT, x, n, rank, x);
    if (this->by_row(RNNORM_HIDDEN)) this->template by_its_rows<U>(RNNORM_HIDDEN, h, n, rank, h);
    const Step<T> s = terms_step<U>(u, t, rank, nullptr, nullptr);
    either(plan.fused, plan.extra, [&](auto fused, auto extra) {
      Cell::template first<T, U, decltype(fused)::value, decltype(extra)::value>(s);
    });
    for (int64_t b = 0; paired && b < n; ++b)
      this->copy_as_factors(s.operand + b * H, u, H,
                            this->seen_operand + b * this->seen_stride());
  }

  // the equations of one tile up to the state of the cell site, or up to h in a cell without one;
  // prefetches the memory for the terms of the tile that the thread computes next
  template <int U>
  void gates(Units u, int64_t t, int64_t rank, Units next, int64_t next_t) const {
    const int64_t n = a.sizes[t];
    T *x = plan.fused ? nullptr : x_terms(u, t, rank), *h = h_terms(u, t, rank);
    const bool more = next_t < T_;
    const T* next_h = more && a.saved_h ? tile_of(a.saved_h, G, next, next_t) : nullptr;
    const T* next_x = more && !plan.recompute && a.saved_x ? tile_of(a.saved_x, G, next, next_t)
                                                          : nullptr;
    constexpr int last = Cell::two_products;
    if (!last && this->by_row(RNNORM_INPUT))
      this->template by_its_rows<U>(RNNORM_INPUT, x, n, rank, x);
    if (this->by_row(RNNORM_HIDDEN))
      this->template by_its_rows<U, last>(RNNORM_HIDDEN, h, n, rank, h);
    const Step<T> s = terms_step<U>(u, t, rank, next_h, next_x);
    either(plan.fused, plan.extra, [&](auto fused, auto extra) {
      Cell::template forward<T, U, decltype(fused)::value, decltype(extra)::value>(s);
    });
    if constexpr (Cell::has_cell) {
      const rnnorm_site& c_site = a.site[RNNORM_CELL];
      clear_beyond<U>(s.state[0].after, n, u);
      if (this->takes(c_site, t))
        this->template take_statistic<1, U>(c_site, s.state[0].after, n, u, t);
      this->template take_rows_of<U>(RNNORM_CELL, s.state[0].after, n, u);
    }
  }

  // the equations of one tile from the state of the cell site to h, and the states to the caller
  template <int U>
  void output(Units u, int64_t t, int64_t rank) const {
    const int64_t n = a.sizes[t];
    if constexpr (Cell::has_cell) {
      Step<T> s = tile_step<U>(u, t, rank);
      const T* c = s.state[0].after;
      if (this->by_row(RNNORM_CELL)) {
        T* to = scratch_c + rank * B * tile_units;
        this->template by_its_rows<U>(RNNORM_CELL, c, n, rank, to);
        c = to;
      }
      s.cell = {c, this->template affine<U, RNNORM_CELL>(t, u, rank), nullptr};
      either(plan.extra,
             [&](auto extra) { Cell::template output<T, U, decltype(extra)::value>(s); });
    }
    this->pass_made(u, t);
    const int64_t next = t + 1 < T_ ? a.sizes[t + 1] : 0;
    for (int k = 0; k < Cell::states; ++k) {
      const T* state = this->carried(k, u, t);
      T* last = static_cast<T*>(a.c_n) + k * B * H;
      for (int64_t b = next; b < n; ++b)
        std::memcpy(last + b * H + u.first, state + b * U, size_t(u.count) * sizeof(T));
      if (T* every = static_cast<T*>(a.all_c))
        for (int64_t b = 0; b < n; ++b)
          std::memcpy(every + ((k * T_ + t) * B + b) * H + u.first, state + b * U,
                      size_t(u.count) * sizeof(T));
    }
  }

  template <int U>
  Step<T> terms_step(Units u, int64_t t, int64_t rank, const T* next_h, const T* next_x) const {
    Step<T> s = tile_step<U>(u, t, rank);
    s.h = {h_terms(u, t, rank), this->template affine<U, RNNORM_HIDDEN>(t, u, rank), next_h};
    if (!plan.fused)
      s.x = {x_terms(u, t, rank), this->template affine<U, RNNORM_INPUT>(t, u, rank), next_x};
    s.operand = this->operand + u.first;
    return s;
  }
  template <int U>
  Step<T> tile_step(Units u, int64_t t, int64_t rank) const {
    Step<T> s{};
    s.n = a.sizes[t];
    s.units = u.count;
    s.h_after = this->cell_h(t) + u.first;
    s.h_stride = H;
    if (Cell::has_cell) s.halfway = halfway + Cell::halfway * this->scratch_at(u, rank);
    for (int k = 0; k < Cell::states; ++k) {
      State<T>& state = s.state[k];
      state.before = this->state_before(k, u, t);
      state.carried = this->carried(k, u, t);
      state.after = k || !this->carries() ? state.carried
                    : a.saved_c           ? tile_of(a.saved_c, 1, u, t)
                                          : made_c + this->scratch_at(u, rank);
    }
    this->template add_before<U>(s, u, t, rank);
    this->add_extra(s, u, t);
    return s;
  }

  void run_thread(Team& team, int64_t rank) {
    const int64_t first = tiles.share(rank, team.size()), last = tiles.share(rank + 1, team.size());
    tiles.each(first, last, [&](auto width, Units u) {
      this->prepare_tile(u);
      this->template pack_weights<decltype(width)::value>(u);
    });
    this->prepare_projection(rank, team.size());
    this->pad_inputs(rank, team.size());
    if (this->shows || this->pads_x()) team.barrier();
    const int64_t from = first < last ? tiles[first].first : 0;
    const int64_t to = first < last ? tiles[last - 1].first + tiles[last - 1].count : 0;
    for (int64_t t = 0; t < T_; ++t) {
      for (int which = 0; which < RNNORM_SITES; ++which) this->read_constants(which, t, from, to);
      if (plan.across) {
        if (!step_across(team, rank, first, last, t)) return;
      } else {
        const auto tile = [&](int64_t i, int64_t at) {
          return tiles[backwards(at) ? first + last - 1 - i : i];
        };
        for (int64_t i = first; i < last; ++i) {
          const int64_t following = i + 1 < last ? i + 1 : first, next_t = t + (following == first);
          const Units u = tile(i, t);
          with_width(u.width, [&](auto width) {
            constexpr int U = decltype(width)::value;
            this->template products<U>(u, t, rank);
            gates<U>(u, t, rank, tile(following, next_t), next_t);
            output<U>(u, t, rank);
          });
        }
      }
      if (this->projects()) {
        team.barrier();
        this->project(t, rank, team.size());
      }
      if (rank == 0) finish_rows(t);
      if (this->meets_each_step()) team.barrier();
    }
  }

  // whether a step begins with the last tile, whose weights were read last and may still be in
  // cache; other products than those by AMX prefetch the panel that follows
  static bool backwards(int64_t t) { return amx && t % 2; }

  // statistics that need the tiles of all threads or processes; false if an exchange has failed
  bool step_across(Team& team, int64_t rank, int64_t first, int64_t last, int64_t t) {
    const auto multiply = [&](auto width, Units u) {
      this->template products<decltype(width)::value>(u, t, rank);
    };
    tiles.each(first, last, multiply, backwards(t));
    if (!this->meet(team, rank, t, RNNORM_INPUT, RNNORM_HIDDEN)) return false;
    merge_rows(RNNORM_INPUT, t, offset[t] - offset[t - t % steps_at_once], rank);
    merge_rows(RNNORM_HIDDEN, t, 0, rank);
    if constexpr (Cell::two_products) {
      tiles.each(first, last,
                 [&](auto width, Units u) { make_operand<decltype(width)::value>(u, t, rank); });
      team.barrier();
      tiles.each(first, last, [&](auto width, Units u) {
        this->template second_product<decltype(width)::value>(u, t, rank);
      });
      if (!this->meet(team, rank, t, RNNORM_HIDDEN, RNNORM_HIDDEN)) return false;
      this->template merge_rows<1>(RNNORM_HIDDEN, t, 0, rank);
    }
    tiles.each(first, last, [&](auto width, Units u) {
      gates<decltype(width)::value>(u, t, rank, u, t + 1);
    });
    if (!this->meet(team, rank, t, RNNORM_CELL, RNNORM_CELL)) return false;
    merge_rows(RNNORM_CELL, t, 0, rank);
    tiles.each(first, last, [&](auto width, Units u) {
      output<decltype(width)::value>(u, t, rank);
    });
    return true;
  }

  void prefer_huge_pages() const {
    const int64_t bytes = plan.frames * P * int64_t(sizeof(T));
    // of padding that is not cleared, most pages are never touched
    if (a.clears) rnnorm_prefer_huge_pages(a.output, T_ * B * R * output_bytes());
    rnnorm_prefer_huge_pages(a.saved_x, G * bytes);
    rnnorm_prefer_huge_pages(a.saved_h, G * bytes);
    rnnorm_prefer_huge_pages(a.saved_c, Cell::states * bytes);
    rnnorm_prefer_huge_pages(a.saved_carried, bytes);
  }

  // writes zeros after the end of rows
  void finish_rows(int64_t t) const {
    const int64_t n = a.sizes[t];
    if (!a.clears || !H || n == B) return;
    const auto clear = [&](void* rows, int64_t bytes) {
      std::memset(static_cast<char*>(rows) + (t * B + n) * bytes, 0, size_t((B - n) * bytes));
    };
    clear(a.output, R * output_bytes());
    for (int k = 0; a.all_c && k < Cell::states; ++k)
      clear(static_cast<T*>(a.all_c) + k * T_ * B * H, H * int64_t(sizeof(T)));
  }
  int64_t output_bytes() const { return a.narrow ? sizeof(Stored<T>) : sizeof(T); }
};

}  // namespace
}  // namespace rnnorm

extern "C" int RNNORM_FORWARD(const rnnorm_layer* layer) {
  return rnnorm::run_layer<rnnorm::Forward>(*layer);
}
