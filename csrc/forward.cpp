// the forward pass: a thread owns hidden units for the whole batch, one barrier a step
#include "layout.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct Forward : Layer<Cell, T> {
  using Base = Layer<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::T_, Base::B, Base::I, Base::H,
      Base::P;
  static constexpr int G = Cell::gates;

  bool few;               // rows, so few that packing the weights would cost more than the products
  int64_t steps_at_once;  // of the input product
  int64_t room;           // per thread, for the three affine maps
  T *panel_x, *panel_h, *chunk, *c_now, *own_x, *own_h, *gate, *affines;

  explicit Forward(const rnnorm_layer& args) : Base(args) {
    // evaluation alone: the sums have another order
    few = a.min_rows < 0 && !a.saved_h && T_ * B <= few_rows;
    // few inputs: W_x x just before it is used; many: while a tile of W_x is in cache
    steps_at_once = plan.whole       ? T_
                    : plan.recompute ? 1
                                     : smaller(T_, quotient_up(chunk_rows / 2, larger(B, 1)));
    room = this->affine_room(a.site[RNNORM_INPUT], G) +
           this->affine_room(a.site[RNNORM_HIDDEN], G) +
           this->affine_room(a.site[RNNORM_CELL], 1);
  }

  void take(Arena& arena) {
    Base::take(arena);
    panel_x = arena.take<T>(few ? 0 : G * P * I);
    panel_h = arena.take<T>(few ? 0 : G * P * H);
    const bool chunked = !plan.recompute && (plan.fused ? !a.saved_h : !a.saved_x);
    chunk = arena.take<T>(chunked ? G * P * steps_at_once * B : 0);
    c_now = arena.take<T>(Cell::has_cell && !a.saved_c ? P * B : 0);
    const int64_t tile = a.threads * B * tile_units;
    own_x = arena.take<T>(plan.recompute ? G * tile : 0);
    own_h = arena.take<T>(G * tile);
    gate = arena.take<T>(tile);
    affines = arena.take<T>(a.threads * room);
  }

  T* kept(void* saved, int columns, Units u, int64_t t) const {
    return static_cast<T*>(saved) + columns * (plan.frames * u.first + offset[t] * u.width);
  }
  T* in_chunk(Units u, int64_t t) const {
    const int64_t start = t - t % steps_at_once;
    return chunk + G * (u.first * steps_at_once * B + (offset[t] - offset[start]) * u.width);
  }
  T* x_terms(Units u, int64_t t, int64_t rank) const {
    if (plan.recompute) return own_x + rank * G * B * tile_units;
    return a.saved_x ? kept(a.saved_x, G, u, t) : in_chunk(u, t);
  }
  T* h_terms(Units u, int64_t t, int64_t rank) const {
    if (a.saved_h) return kept(a.saved_h, G, u, t);
    return plan.fused ? in_chunk(u, t) : own_h + rank * G * B * tile_units;
  }

  template <int U>
  void step(Units u, int64_t t, int64_t rank, Units next, int64_t next_t) const {
    constexpr int C = G * U;
    const rnnorm_site *x_site = &a.site[RNNORM_INPUT], *h_site = &a.site[RNNORM_HIDDEN],
                      *c_site = &a.site[RNNORM_CELL];
    const int64_t n = a.sizes[t];
    T *x = plan.fused ? nullptr : x_terms(u, t, rank), *h = h_terms(u, t, rank);
    this->fetch_constants(*x_site, t, G, u);
    this->fetch_constants(*h_site, t, G, u);
    if (Cell::has_cell) this->fetch_constants(*c_site, t, 1, u);
    if (t % steps_at_once == 0) {
      const int64_t stop = smaller(T_, t + steps_at_once);
      T* to = plan.fused ? h : x;
      if (!few) this->template input_product<U>(t, stop, panel_x + G * u.first * I, to);
      for (int64_t i = t; few && i < stop; to += G * U * a.sizes[i++])
        dots<U>(this->x_rows(i), a.sizes[i], a.weight_ih, I, u, to, false);
      if (plan.whole && this->takes(*x_site, t)) take_statistic<C>(*x_site, x, plan.frames, u, 0);
    }
    if (few)
      dots<U>(this->h_rows(t - 1), n, a.weight_hh, H, u, h, plan.fused);
    else
      product<T, C>({this->h_rows(t - 1), H, 1, 1, H, 0}, n, panel_h + G * u.first * H, h, C,
                    plan.fused);
    if (!plan.whole && this->takes(*x_site, t)) take_statistic<C>(*x_site, x, n, u, t);
    if (this->takes(*h_site, t)) take_statistic<C>(*h_site, h, n, u, t);

    const bool more = next_t < T_;
    const T* next_h = more && a.saved_h ? kept(a.saved_h, G, next, next_t) : nullptr;
    const T* next_x = more && !plan.recompute && a.saved_x ? kept(a.saved_x, G, next, next_t)
                                                          : nullptr;
    T* spare = affines + rank * room;
    const int64_t at = G * u.first;
    Step<T> s{};
    s.n = n;
    s.units = u.count;
    s.h = {h, this->template affine<U, G>(*h_site, t, u, this->gamma_h + at,
                            this->shift_h + at, spare), next_h};
    spare += this->affine_room(*h_site, G);
    if (!plan.fused)
      s.x = {x, this->template affine<U, G>(*x_site, t, u, this->gamma_x + at,
                               this->shift_x + at, spare), next_x};
    spare += this->affine_room(*x_site, G);
    s.h_before = this->h_rows(t - 1) + u.first;
    s.h_after = static_cast<T*>(a.output) + t * B * H + u.first;
    s.h_stride = H;
    s.gate = gate + rank * B * tile_units;
    if constexpr (Cell::has_cell) {
      s.c_before = t == 0     ? this->c_first + B * u.first
                   : a.saved_c ? kept(a.saved_c, 1, u, t - 1)
                               : c_now + B * u.first;
      s.c_after = a.saved_c ? kept(a.saved_c, 1, u, t) : c_now + B * u.first;
    }
    if (plan.fused)
      Cell::template forward<T, U, true>(s);
    else
      Cell::template forward<T, U, false>(s);
    if constexpr (Cell::has_cell) {
      if (this->takes(*c_site, t)) {
        const int64_t step = t * H + u.first;
        T mean[U], var[U];
        moments<T, U>(s.c_after, n, mean, var);
        std::memcpy(static_cast<T*>(c_site->mean) + step, mean, size_t(u.count) * sizeof(T));
        std::memcpy(static_cast<T*>(c_site->var) + step, var, size_t(u.count) * sizeof(T));
      }
      s.cell = {s.c_after, this->template affine<U, 1>(*c_site, t, u, this->gamma_c + u.first,
                                        this->beta_c + u.first, spare), nullptr};
      Cell::template output<T, U>(s);
      const int64_t next = t + 1 < T_ ? a.sizes[t + 1] : 0;
      T* c_n = static_cast<T*>(a.c_n);
      for (int64_t b = next; b < n; ++b)
        std::memcpy(c_n + b * H + u.first, s.c_after + b * U, size_t(u.count) * sizeof(T));
    }
  }

  // n rows times the rows of a weight (G H, K) that belong to a tile
  template <int U>
  void dots(const T* rows, int64_t n, const void* weight, int64_t K, Units u, T* to,
            bool accumulate) const {
    // units that do not exist
    if (u.count < U && !accumulate) std::memset(to, 0, size_t(n * G * U) * sizeof(T));
    for (int g = 0; g < G; ++g)
      unpacked_product(rows, n, static_cast<const T*>(weight) + (g * H + u.first) * K, u.count, K,
                       to + g * U, G * U, accumulate);
  }

  template <int C>
  void take_statistic(const rnnorm_site& site, const T* z, int64_t n, Units u, int64_t t) const {
    T mean[C], var[C];
    moments<T, C>(z, n, mean, var);
    this->scatter(mean, u, static_cast<T*>(site.mean) + t * G * H);
    this->scatter(var, u, static_cast<T*>(site.var) + t * G * H);
  }

  template <class Team>
  void run_thread(Team& team, int64_t rank) {
    const int64_t first = tiles.share(rank, team.size()), last = tiles.share(rank + 1, team.size());
    for (int64_t i = first; i < last; ++i) {
      const Units u = tiles[i];
      this->prepare_tile(u);
      if (few) continue;
      with_width(u.width, [&](auto width) {
        constexpr int C = G * decltype(width)::value;
        this->template pack_columns<C>(a.weight_ih, I, u, panel_x + G * u.first * I);
        this->template pack_columns<C>(a.weight_hh, H, u, panel_h + G * u.first * H);
      });
    }
    for (int64_t t = 0; t < T_; ++t) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t following = i + 1 < last ? i + 1 : first;
        const Units u = tiles[i], next = tiles[following];
        with_width(u.width, [&](auto width) {
          this->template step<decltype(width)::value>(u, t, rank, next, t + (following == first));
        });
      }
      if (rank == 0) finish_rows(t);
      team.barrier();
      if (rank == 0) {
        const int64_t next = t + 1 < T_ ? a.sizes[t + 1] : 0, n = a.sizes[t];
        if (H && n > next)
          std::memcpy(static_cast<T*>(a.h_n) + next * H, this->h_rows(t) + next * H,
                      size_t((n - next) * H) * sizeof(T));
      }
    }
  }

  void prefer_huge_pages() const {
    const int64_t kept = plan.frames * P * int64_t(sizeof(T));
    rnnorm_prefer_huge_pages(a.output, T_ * B * H * int64_t(sizeof(T)));
    rnnorm_prefer_huge_pages(a.saved_x, G * kept);
    rnnorm_prefer_huge_pages(a.saved_h, G * kept);
    rnnorm_prefer_huge_pages(a.saved_c, kept);
  }

  // zeros where rows have ended
  void finish_rows(int64_t t) const {
    const int64_t n = a.sizes[t];
    if (H && n < B)
      std::memset(static_cast<T*>(a.output) + (t * B + n) * H, 0, size_t((B - n) * H) * sizeof(T));
  }
};

}  // namespace
}  // namespace rnnorm

extern "C" int RNNORM_FORWARD(const rnnorm_layer* layer) {
  return rnnorm::run_layer<rnnorm::Forward>(*layer);
}
