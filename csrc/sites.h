// the gradient of each normalised term back to its raw product, and what all steps add up to: the
// gradients of gamma, shift and peepholes
#pragma once
#include "gradients.h"

namespace rnnorm {
namespace {

template <class Cell, class T>
struct SiteGradients : GradientProducts<Cell, T> {
  using Base = GradientProducts<Cell, T>;
  using Base::a, Base::plan, Base::tiles, Base::offset, Base::H, Base::P;
  static constexpr int G = Cell::gates;

  T *sum_x, *sum_h, *dot_x, *dot_h, *sum_c, *dot_c, *sum_peephole;

  using Base::Base;

  void take(Arena& arena) {
    Base::take(arena);
    for (T** p : {&sum_x, &sum_h, &dot_x, &dot_h}) *p = arena.take<T>(G * P);
    for (T** p : {&sum_c, &dot_c}) *p = arena.take<T>(P);
    sum_peephole = arena.take<T>(Cell::has_cell ? RNNORM_PEEPHOLES * P : 0);
  }

  void zero_sums(Units u) const {
    for (T* p : {sum_x, sum_h, dot_x, dot_h}) this->zero(p + G * u.first, G * u.width);
    for (T* p : {sum_c, dot_c}) this->zero(p + u.first, u.width);
    for (int which = 0; Cell::has_cell && which < RNNORM_PEEPHOLES; ++which)
      this->zero(sum_peephole + which * P + u.first, u.width);
  }

  // adds a step's sums of one site that no other thread or process has a part in, and takes its
  // gradient back through the normalisation
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
        batch_gradient<T, C>(dy, x, by, n, n, sum, dot, dx);
      else
        constant_gradient<T, C>(dy, by, n, dx);
    }
    for (int c = 0; c < C; ++c) total[c] += sum[c];
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

  // a tile's sums for the gradients of gamma and shift, and its part in those of others
  template <class R, int U>
  void add_sums(int which, int64_t t, const T* dy, const Term<T>& z, Units u, T* total,
                T* total_dot, int64_t n) const {
    constexpr int C = R::all * U;
    T sum[C], dot[C];
    gradient_sums<T, C>(dy, z.raw, z.by, n, sum, dot);
    for (int c = 0; c < C; ++c) total[c] += sum[c], total_dot[c] += dot[c];
    if (this->by_row(which)) {
      row_gradient_sums<R, T, U>(dy, z.raw, z.by.scale, n, u, this->row_site[which].parts);
    } else {
      this->template scatter<R::all>(sum, u, exchanged_sums<R>(which, t));
      this->template scatter<R::all>(dot, u, exchanged_sums<R>(which, t) + R::all * H);
    }
  }
  // of dy, and after them those of that times the normalised term
  template <class R>
  T* exchanged_sums(int which, int64_t t) const {
    return static_cast<T*>(a.site[which].sums) + 2 * t * R::all * H;
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
  void through(int which, int64_t t, int64_t rank, const T* dy, const Term<T>& z, Units u,
               int64_t n, T* total, T* total_dot, T* dx) const {
    constexpr int C = R::all * U;
    if (this->exchanged(which, t)) {
      T sum[C], dot[C];
      this->template gather<R::all>(exchanged_sums<R>(which, t), u, sum);
      this->template gather<R::all>(exchanged_sums<R>(which, t) + R::all * H, u, dot);
      const int64_t all = this->rows_of(a.site[which], t);
      return batch_gradient<T, C>(dy, z.raw, z.by, n, all, sum, dot, dx);
    }
    if (!this->by_row(which))
      return through_site<C>(a.site[which], t, dy, z.raw, z.by, n, total, total_dot, dx);
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

  // a tile's sums to where the caller wants them
  void scatter_sums(Units u) const {
    const int64_t at = G * u.first;
    this->scatter((plan.fused ? sum_h : sum_x) + at, u, a.grad_bias_ih);
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
  }
};

}  // namespace
}  // namespace rnnorm
