// a layer's memory: where its weights, states and scratch lie, and what a step reads of them
#pragma once
// a user's cell, rnnorm::Own for numbers of the type RNNORM_OWN, is compiled at its first use
#ifdef RNNORM_OWN
#include "own.h"
#else
#include "cells.h"
#endif
#include "plan.h"

namespace rnnorm {
namespace {

// rows of the weight gradients' products: while they are in cache
constexpr int64_t chunk_rows = 512;

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
  const int64_t R;               // units of h
  const int64_t FI, FH;          // factors of a row of x and of h in their products
  const int64_t head;            // units of a head, which read each other's h alone
  const int64_t reads;           // units of h that each unit reads
  int64_t FR;                    // factors of the most units of h that a tile reads
  int64_t* offset;               // frames before step t
  T *gamma[RNNORM_SITES], *shift[RNNORM_SITES], *peepholes, *first_states;
  T* states_now = nullptr;    // the states that the next step reads, where none are saved
  T* unit_weight;             // of an independent cell
  T* two_h = nullptr;         // the h of two steps, if the output is narrower
  T *anew_h, *anew_states;    // a tile of the step before, with zeros in rows that begin anew
  bool multiplies_x = false;  // whether the pass multiplies the rows of x by W_x
  Stored<T>* whole_x;         // those rows with zeros at their ends, where factors need them

  explicit Layer(const rnnorm_layer& args)
      : a(args), plan(args, Cell::separate, Cell::two_products), tiles(args.H), T_(args.T),
        B(args.B), I(args.I), H(args.H), P(tiles.padded), R(args.R), FI(row_factors(I)),
        FH(row_factors(R)), head(H / args.heads), reads(R / args.heads), FR(0) {
    for (int64_t i = 0; i < tiles.count; ++i) FR = larger(FR, row_factors(read_by(tiles[i]).count));
  }

  void take(Arena& arena) {
    offset = arena.take<int64_t>(T_ + 1);
    for (int which = 0; which < RNNORM_SITES; ++which)
      for (T** p : {gamma, shift}) p[which] = arena.take<T>(gates_of(which) * P);
    peepholes = arena.take<T>(Cell::weights * P);
    first_states = arena.take<T>(Cell::states * B * P);
    unit_weight = arena.take<T>(Cell::independent ? P : 0);
    anew_h = arena.take<T>(a.reset && passes() ? scratch_size() : 0);
    anew_states = arena.take<T>(a.reset ? Cell::states * scratch_size() : 0);
    whole_x = arena.take<Stored<T>>(pads_x() ? T_ * B * FI * per_factor : 0);
  }

  static constexpr int gates_of(int which) { return which == RNNORM_CELL ? 1 : G; }

  // offset of a tile's scratch memory, in numbers for each row and unit: where a step has barriers
  // between its parts each tile has its own, elsewhere the tiles of a thread use one in turn
  int64_t scratch_at(Units u, int64_t rank) const {
    return B * (plan.across ? u.first : rank * tile_units);
  }
  int64_t scratch_size() const { return B * (plan.across ? P : a.threads * tile_units); }

  // where the rows of a tile at step t lie in an array saved for backward: it is ordered by tile, and
  // within a tile by frame
  T* tile_of(void* saved, int columns, Units u, int64_t t) const {
    return static_cast<T*>(saved) + columns * (plan.frames * u.first + offset[t] * u.width);
  }

  // state k beside h of a tile after step t
  T* saved_state(int k, Units u, int64_t t) const {
    return tile_of(a.saved_c, 1, u, t) + k * plan.frames * P;
  }
  // state k as the step after t reads it
  T* carried(int k, Units u, int64_t t) const {
    if (k == 0 && carries() && a.saved_carried) return tile_of(a.saved_carried, 1, u, t);
    return a.saved_c ? saved_state(k, u, t) : states_now + in_states(k, u);
  }
  // state k as step t reads it, but for rows that begin anew
  T* state_before(int k, Units u, int64_t t) const {
    return t == 0 ? first_states + in_states(k, u) : carried(k, u, t - 1);
  }
  // offset of a tile of state k in an array of (states, P, B) numbers
  int64_t in_states(int k, Units u) const { return B * (k * P + u.first); }

  // a tile's units of rows of H numbers, those of a term's gates in torch's order or of a state;
  // zero where no unit is
  void gather(const void* array, Units u, T* tile, int64_t rows = G) const {
    const T* from = static_cast<const T*>(array);
    for (int64_t r = 0; r < rows; ++r, tile += u.width)
      for (int64_t k = 0; k < u.width; ++k)
        tile[k] = from && k < u.count ? from[r * H + u.first + k] : T(0);
  }
  void scatter(const T* tile, Units u, void* array, int64_t rows = G) const {
    T* to = static_cast<T*>(array);
    if (!to) return;
    for (int64_t r = 0; r < rows; ++r, tile += u.width)
      std::memcpy(to + r * H + u.first, tile, size_t(u.count) * sizeof(T));
  }

  void prepare_offsets() {
    offset[0] = 0;
    for (int64_t t = 0; t < T_; ++t) offset[t + 1] = offset[t] + a.sizes[t];
  }
  bool pads_x() const { return multiplies_x && FI * per_factor > I; }
  // copies a thread's share of the rows of x to whole_x
  void pad_inputs(int64_t rank, int64_t team) const {
    const int64_t row = FI * per_factor, rows = pads_x() ? T_ * B : 0;
    for (int64_t r = rows * rank / team; r < rows * (rank + 1) / team; ++r) {
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
    if (Cell::independent) gather(a.weight_hh, u, unit_weight + u.first, 1);
    gather_states(a.c0, u, first_states);
    for (int which = 0; which < Cell::weights; ++which)
      gather(of_units(a.peephole, which), u, peepholes + which * P + u.first, 1);
  }
  // one of the weights with a number for each unit, or of their gradients
  template <class Void>
  auto of_units(Void* const (&weights)[RNNORM_PEEPHOLES], int which) const {
    using Number = std::conditional_t<std::is_const_v<Void>, const T, T>;
    const int slot = which < RNNORM_PEEPHOLES ? which : RNNORM_PEEPHOLES - 1;
    Number* const first = static_cast<Number*>(weights[slot]);
    return first ? first + (which - slot) * H : nullptr;
  }
  // a tile's units of all states beside h, (states, B, H)
  void gather_states(const void* array, Units u, T* to) const {
    for (int k = 0; k < Cell::states; ++k)
      gather(array ? static_cast<const T*>(array) + k * B * H : nullptr, u, to + in_states(k, u), B);
  }

  // the units of h that a tile's units read
  struct Span {
    int64_t first, count;
  };
  Span read_by(Units u) const {
    if (head == H) return {0, R};
    const int64_t first = u.first / head * head;
    return {first, quotient_up(u.first + u.count, head) * head - first};
  }
  // calls body(unit, place in the tile, first unit of its head) for a tile's units
  template <class Body>
  void each_unit(Units u, Body body) const {
    for (int64_t j = 0; j < u.count; ++j)
      body(u.first + j, j, (u.first + j) / head * head);
  }

  const Stored<T>* x_rows(int64_t t) const {
    return static_cast<const Stored<T>*>(a.x) + t * B * I;
  }
  const T* h_rows(int64_t t) const {
    return t < 0 ? static_cast<const T*>(a.h0) : h_after(t);
  }
  // where step t writes its h: the output, or in turn one of two steps in scratch memory
  T* h_after(int64_t t) const {
    return two_h ? two_h + t % 2 * B * R : static_cast<T*>(a.output) + t * B * R;
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
    if (some && passes() && !projects()) {
      s.h_before = seen_anew<U>(s.h_before, H, u, t, anew_h + scratch_at(u, rank));
      s.h_before_stride = U;
    }
    for (int k = 0; some && k < Cell::states; ++k)
      s.state[k].before = seen_anew<U>(s.state[k].before, U, u, t,
                                       anew_states + k * scratch_size() + scratch_at(u, rank));
  }

  // gives a tile its peepholes and what recurrent dropout drew for step t
  void add_extra(Step<T>& s, Units u, int64_t t) const {
    if (Cell::two_products) s.seen = tile_mask(RNNORM_SEEN, u, t);
    if (!plan.extra) return;
    s.carry = a.carry;
    for (int which = 0; which < Cell::weights; ++which)
      s.peephole[which] = of_units(a.peephole, which) ? peepholes + which * P + u.first : nullptr;
    s.candidate = tile_mask(RNNORM_CANDIDATE, u, t);
    // a projected h has its zoneout after the projection
    if (!projects()) s.zone_h = tile_mask(RNNORM_ZONE_H, u, t);
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
      const Stored<T>* x = pads_x() ? whole_x + t * B * row : x_rows(t);
      product<T, C>({reinterpret_cast<const F*>(x), FI, 1, 1, FI, 0}, n, panel, to, C, false);
      clear_missing<U>(u, n, to);
      to += n * C;
    }
  }
  // whether the next step reads another than the new state c, the first beside h
  bool carries() const { return a.carry || a.mask[RNNORM_ZONE_C].drawn; }
  bool projects() const { return a.weight_hr; }
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