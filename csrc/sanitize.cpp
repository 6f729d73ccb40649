// runs every cell and scope over awkward sizes beside a plain loop: see `make sanitize aarch64`
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "layer.h"
#include "plain.h"

// products of bfloat16 by plain arithmetic, where the build in use has none
#ifdef RNNORM_WITHOUT_MODEL
constexpr auto rnnorm_forward_pairs = rnnorm_forward, rnnorm_backward_pairs = rnnorm_backward;
constexpr bool has_model = false;
#else
extern "C" int rnnorm_forward_pairs(const rnnorm_layer*);
extern "C" int rnnorm_backward_pairs(const rnnorm_layer*);
constexpr bool has_model = true;
#endif

namespace {

using Pass = int (*)(const rnnorm_layer*);

unsigned state = 1;
double draw() {
  state = state * 1664525u + 1013904223u;
  return double(state >> 8) / double(1 << 24) - 0.5;
}

int64_t below(int64_t count) { return int64_t((draw() + 0.5) * double(count)); }

template <class T>
T number(double value) {
  return T(value);
}
// bfloat16 is the upper half of a float
template <>
uint16_t number(double value) {
  const float wide = float(value);
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  return uint16_t(bits >> 16);
}
template <class T>
bool is_finite(T value) {
  return std::isfinite(value);
}
template <>
bool is_finite(uint16_t value) {
  return (value & 0x7f80) != 0x7f80;
}

// blocks of exactly the size that the interface asks for
template <class T>
class Memory {
 public:
  T* numbers(int64_t count) {
    std::vector<T>& block = fresh(count);
    for (T& value : block) value = number<T>(draw());
    return block.data();
  }
  T* positive(int64_t count) {
    T* block = numbers(count);
    for (int64_t k = 0; k < count; ++k) block[k] += T(1);
    return block;
  }
  T* results(int64_t count) {
    std::vector<T>& block = fresh(count);
    for (T& value : block) value = number<T>(NAN);
    outputs_.push_back(&block);
    return block.data();
  }
  T* zeros(int64_t count) { return fresh(count).data(); }
  bool finite() const {
    for (const std::vector<T>* block : outputs_)
      for (T value : *block)
        if (!is_finite(value)) return false;
    return true;
  }
  ~Memory() {
    for (std::vector<T>* block : blocks_) delete block;
  }

 private:
  std::vector<T>& fresh(int64_t count) {
    blocks_.push_back(new std::vector<T>(size_t(count)));
    return *blocks_.back();
  }
  std::vector<std::vector<T>*> blocks_, outputs_;
};

// whether the outputs are the plain loop's, and the gradients fit its difference quotient
template <class T>
bool agrees(const rnnorm_layer& a) {
  const bool half = a.numbers == RNNORM_BFLOAT16;
  const double precision = half ? 0.1 : sizeof(T) == 8 ? 1e-10 : 1e-4;
  const plain::Layer<T> expected(a, 0);
  bool good = true;
  const auto compare = [&](const void* got, const plain::Numbers& numbers) {
    double squares = 0, all = 1;
    for (size_t k = 0; k < numbers.size(); ++k) {
      const double error = std::fabs(static_cast<const T*>(got)[k] - numbers[k]);
      good &= half || error <= precision * (1 + std::fabs(numbers[k]));
      squares += error * error;
      all += numbers[k] * numbers[k];
    }
    // rounding of h to bfloat16 is much of a single small number
    good &= squares <= precision * precision * all;
  };
  compare(a.output, expected.output);
  compare(a.h_n, expected.h_n);
  compare(a.c_n, expected.c_n);
  compare(a.all_c, expected.all_c);

  double slope = 0, scale = 1;
  const auto add = [&](const void* gradient, int64_t count, bool stored = false) {
    for (int64_t k = 0; gradient && k < count; ++k) {
      const double number = stored ? plain::Layer<T>::number(a, gradient, k)
                                   : double(static_cast<const T*>(gradient)[k]);
      const double part = number * plain::direction(k);
      slope += part;
      scale += std::fabs(part);
    }
  };
  const int64_t F = plain::gates_of(a.cell) * a.H;
  add(a.grad_x, a.T * a.B * a.I, true);
  add(a.grad_h0, a.B * a.R);
  add(a.grad_c0, a.B * a.H);
  add(a.grad_weight_ih, F * a.I, true);
  add(a.grad_weight_hh, plain::Layer<T>::recurrent_weights(a), !plain::independent(a.cell));
  add(a.grad_bias_ih, F);
  add(a.grad_bias_hh, F);
  for (int k = 0; k < RNNORM_SITES; ++k) {
    add(a.site[k].grad_gamma, k == RNNORM_CELL ? a.H : F);
    add(a.site[k].grad_beta, a.H);
  }
  for (void* grad : a.grad_peephole) add(grad, a.H);
  std::vector<T> grad_weight_hr(size_t(a.weight_hr ? a.R * a.H : 0));
  int64_t frames = 0;
  for (int64_t t = 0; t < a.T; ++t) frames += a.sizes[t];
  for (int64_t k = 0; k < frames * int64_t(grad_weight_hr.size()); ++k) {
    const int64_t frame = k / (a.R * a.H), r = k / a.H % a.R;
    grad_weight_hr[r * a.H + k % a.H] += static_cast<const T*>(a.grad_projected)[frame * a.R + r] *
                                         static_cast<const T*>(a.saved_made)[frame * a.H + k % a.H];
  }
  add(grad_weight_hr.data(), int64_t(grad_weight_hr.size()));
  const bool rectified = a.cell == RNNORM_LIGRU || a.cell == RNNORM_RNN_RELU ||
                         a.cell == RNNORM_INDRNN_RELU;
  // rounding may open a rectifier that the plain loop closes
  const double exact = sizeof(T) == 8 ? 1e-7 : rectified ? 1e-3 : 1e-4;
  // a smaller distance for a rectifier whose kink lies within the larger
  for (const double distance : {1e-7, 1e-8, 1e-9}) {
    const double after = plain::Layer<T>(a, distance).loss();
    const double before = plain::Layer<T>(a, -distance).loss();
    const double error = std::fabs((after - before) / (2 * distance) - slope);
    if (error <= (half ? 0.1 : exact) * scale) return good;
  }
  return false;
}

// one process that has exchanges with itself, the next of which may be told to fail
const rnnorm_layer* exchanging;
int64_t exchanges, last_exchange;

template <class T>
int64_t exchange(int64_t which, int64_t first, int64_t count) {
  const rnnorm_layer& a = *exchanging;
  const rnnorm_site& site = a.site[which];
  if (++exchanges == last_exchange) return 1;
  // the sums of backward are whole as they are
  if (a.grad_h0) return 0;
  const int64_t gates = plain::gates_of(a.cell);
  const int64_t features = (which == RNNORM_CELL ? 1 : gates) * a.H;
  for (int64_t t = first; t < first + count; ++t) {
    int64_t rows = 0;
    for (int64_t k = 0; k < (site.scope == RNNORM_SEQUENCE ? a.T : 1); ++k) rows += a.sizes[t + k];
    T* squares = static_cast<T*>(site.var) + t * features;
    for (int64_t k = 0; k < features; ++k) squares[k] /= T(rows);
  }
  return 0;
}

// runs a pass, and then again where one of its exchanges fails
bool both_ways(Pass pass, const rnnorm_layer& a) {
  exchanging = &a;
  exchanges = last_exchange = 0;
  if (pass(&a)) return false;
  if (!exchanges) return true;
  last_exchange = 1 + below(exchanges);
  exchanges = 0;
  const bool told = pass(&a) == 2 && exchanges == last_exchange;
  exchanges = last_exchange = 0;
  return told && !pass(&a);
}

struct Case {
  int64_t cell, T, B, I, H, scopes[RNNORM_SITES], joint, ragged, training, own_age, peepholes,
      masks, exchanged, over, carry, resets, all_c, heads, projected;
};

// a layer whose x and weights are of type S, all else of type T
template <class T, class S>
bool run(const Case& c, int64_t threads) {
  const int64_t gates = plain::gates_of(c.cell);
  const int64_t F = gates * c.H, frames = c.T * c.B, rest = c.H % 16;
  const int64_t units = c.H - rest + (rest == 0 ? 0 : rest <= 4 ? 4 : rest <= 8 ? 8 : 16);
  const bool has_c = c.cell == RNNORM_LSTM;
  Memory<T> memory;
  Memory<S> stored;
  std::vector<int64_t> sizes;
  for (int64_t t = 0; t < c.T; ++t) sizes.push_back(c.ragged && c.B ? c.B - t * (c.B - 1) / c.T : c.B);

  rnnorm_layer a{};
  a.cell = c.cell;
  a.numbers = sizeof(S) == 2 ? RNNORM_BFLOAT16 : sizeof(T) == 8 ? RNNORM_DOUBLE : RNNORM_FLOAT;
  const bool model = sizeof(S) == 2 && !rnnorm_has_bfloat16();
  const Pass forward = model ? rnnorm_forward_pairs : rnnorm_forward;
  const Pass backward = model ? rnnorm_backward_pairs : rnnorm_backward;
  a.threads = threads;
  a.T = c.T, a.B = c.B, a.I = c.I, a.H = c.H, a.R = c.projected ? c.projected : c.H;
  a.heads = c.heads;
  a.sizes = sizes.data();
  a.min_rows = c.training ? 3 : -1;
  if (c.exchanged) a.all_sizes = sizes.data(), a.exchange = exchange<T>;
  a.joint = c.joint;
  a.recompute = c.I <= c.H / 4;
  a.carry = c.carry;
  a.clears = 1;
  for (int k = 0; k < RNNORM_SITES; ++k) {
    rnnorm_site& site = a.site[k];
    site.scope = c.scopes[k];
    site.over = c.over;
    site.eps = k == RNNORM_HIDDEN ? 1e-3 : 1e-5;
    if (!site.scope) continue;
    const int64_t features = k == RNNORM_CELL ? c.H : F;
    const int64_t steps = site.scope == RNNORM_SEQUENCE ? 1 : c.T;
    const int64_t rows = c.own_age && site.scope == RNNORM_FRAME ? c.B : 1;
    site.gamma = memory.numbers(features);
    site.beta = k == RNNORM_CELL ? memory.numbers(features) : nullptr;
    const int64_t apart = 1 + below(steps);
    site.constant_mean = memory.numbers(apart * rows * features);
    site.constant_var = memory.positive(apart * rows * features);
    site.constant_row = rows > 1 ? features : 0;
    site.constant_step = rows * features;
    site.constant_last = apart - 1;
    const bool row = site.scope >= RNNORM_ROW;
    if (row) site.constant_mean = site.constant_var = nullptr;
    const int64_t together = plain::block_gates(c.cell, c.over);
    const int64_t blocks = k == RNNORM_CELL ? 1 : (gates + together - 1) / together;
    const int64_t taken = row ? blocks * frames : steps * features;
    site.mean = row || c.training ? memory.zeros(taken) : nullptr;
    site.var = row || c.training ? memory.zeros(taken) : nullptr;
    site.sums = c.exchanged ? memory.zeros(2 * taken) : nullptr;
    site.grad_gamma = memory.results(features);
    site.grad_beta = k == RNNORM_CELL ? memory.results(features) : nullptr;
  }
  a.x = stored.numbers(frames * c.I);
  a.h0 = memory.numbers(c.B * a.R);
  a.c0 = has_c ? memory.numbers(c.B * c.H) : nullptr;
  a.weight_ih = stored.numbers(F * c.I);
  const int64_t recurrent = plain::Layer<T>::recurrent_weights(a);
  // a vector is of floats where matrices are of bfloat16
  const bool vector = plain::independent(c.cell);
  if (vector)
    a.weight_hh = memory.numbers(recurrent), a.grad_weight_hh = memory.results(recurrent);
  else
    a.weight_hh = stored.numbers(recurrent), a.grad_weight_hh = stored.results(recurrent);
  a.weight_hr = c.projected ? stored.numbers(a.R * c.H) : nullptr;
  a.bias_ih = memory.numbers(F);
  a.bias_hh = memory.numbers(F);
  // from the output gate's on
  for (int k = RNNORM_PEEPHOLES - int(c.peepholes); has_c && k < RNNORM_PEEPHOLES; ++k) {
    a.peephole[k] = memory.numbers(c.H);
    a.grad_peephole[k] = memory.results(c.H);
  }
  std::vector<uint8_t> drawn[RNNORM_MASKS];
  for (int k = 0; k < RNNORM_MASKS; ++k) {
    if (!(c.masks >> k & 1) || (k == RNNORM_ZONE_C && !has_c)) continue;
    // one for each step, or one for all
    const int64_t steps = k % 2 ? c.T : 1, width = plain::is_of_h(k) ? a.R : c.H;
    for (int64_t n = 0; n < steps * c.B * width; ++n) drawn[k].push_back(draw() < 0.1);
    a.mask[k] = {drawn[k].data(), steps > 1 ? c.B * width : 0, width,
                 k < RNNORM_ZONE_H ? 1.5 : 1.0};
  }
  std::vector<uint8_t> reset;
  for (int64_t k = 0; c.resets && k < frames; ++k) reset.push_back(draw() < -0.2);
  a.reset = c.resets ? reset.data() : nullptr;
  a.output = memory.results(frames * a.R);
  a.all_c = has_c && c.all_c ? memory.results(frames * c.H) : nullptr;
  a.h_n = memory.results(c.B * a.R);
  a.c_n = has_c ? memory.results(c.B * c.H) : nullptr;
  T* whole = c.scopes[0] == RNNORM_SEQUENCE ? memory.zeros(frames * gates * units) : nullptr;
  a.saved_x = whole;
  if (!both_ways(forward, a)) return false;

  const bool fused =
      c.cell != RNNORM_GRU && !c.scopes[0] && (c.joint || !c.scopes[RNNORM_HIDDEN]);
  const bool again = a.recompute && !(c.exchanged && c.scopes[0]);
  if (!fused && !again && !whole) a.saved_x = memory.zeros(frames * gates * units);
  a.saved_h = memory.zeros(frames * gates * units);
  a.saved_c = has_c ? memory.zeros(frames * units) : nullptr;
  a.saved_carried =
      a.mask[RNNORM_ZONE_C].drawn || c.carry ? memory.zeros(frames * units) : nullptr;
  a.saved_made = c.projected ? memory.zeros(frames * c.H) : nullptr;
  if (!both_ways(forward, a)) return false;
  a.grad_projected = c.projected ? memory.zeros(frames * a.R) : nullptr;
  a.grad_output = memory.numbers(frames * a.R);
  a.grad_h_n = memory.numbers(c.B * a.R);
  a.grad_c_n = has_c ? memory.numbers(c.B * c.H) : nullptr;
  a.grad_all_c = a.all_c ? memory.numbers(frames * c.H) : nullptr;
  a.grad_x = stored.zeros(frames * c.I);
  a.grad_h0 = memory.results(c.B * a.R);
  a.grad_c0 = has_c ? memory.results(c.B * c.H) : nullptr;
  a.grad_weight_ih = stored.results(F * c.I);
  a.grad_bias_ih = memory.results(F);
  a.grad_bias_hh = memory.results(F);
  return both_ways(backward, a) && memory.finite() && stored.finite() && agrees<T>(a);
}

}  // namespace

// with an argument n, every n-th case
int main(int count, char** arguments) {
  const int stride = count > 1 ? std::atoi(arguments[1]) : 1;
  const int64_t shapes[][4] = {{1, 1, 1, 1},    {3, 4, 1, 20},  {4, 7, 9, 16},
                               {5, 13, 30, 36}, {3, 33, 70, 8}, {9, 70, 5, 24},
                               {2, 4, 19, 21},  {2, 5, 7, 96},  {3, 0, 4, 20},
                               {1, 4, 0, 20},   {1, 4, 4, 0},   {1, 0, 0, 0}};
  const int64_t scopes[][4] = {{0, 0, 0, 0}, {1, 1, 1, 0}, {2, 1, 0, 0}, {1, 0, 0, 0},
                               {0, 1, 1, 1}, {3, 3, 3, 0}, {0, 3, 0, 0}, {3, 0, 3, 0},
                               {0, 3, 3, 1}, {4, 4, 4, 0}, {2, 3, 4, 0}};
  int failures = 0, runs = 0, cases = 0;
  for (int64_t cell = RNNORM_LSTM; cell <= RNNORM_INDRNN_RELU; ++cell)
    for (const auto& s : shapes)
      for (const auto& p : scopes)
        for (int64_t options = 0; options < 16; ++options) {
          if ((cell == RNNORM_GRU && p[3]) || cases++ % stride) continue;
          // no equation has peepholes beside a normalised carry
          const int64_t carry = cell == RNNORM_LSTM && p[2] && below(2);
          const int64_t threads = 1 + runs % 3;
          const bool halves = runs % 4 == 2 && (has_model || rnnorm_has_bfloat16());
          const int64_t drawn = plain::independent(cell) ? 1 : 1 + below(4);
          const int64_t heads = s[3] % (halves ? 32 * drawn : drawn) ? 1 : drawn;
          const int64_t projected =
              cell == RNNORM_LSTM && heads == 1 && s[3] > 1 && below(2) ? 1 + below(s[3] - 1) : 0;
          const Case c{cell, s[0], s[1], s[2], s[3], {p[0], p[1], cell == RNNORM_LSTM ? p[2] : 0},
                       p[3], options & 1, options >> 1 & 1, options >> 2 & 1,
                       options >> 3 && !carry ? below(4) : 0, options >> 3 ? below(16) : 0,
                       options >> 1 & 1 && below(2), below(3), carry, below(2), below(2),
                       heads, projected};
          const bool good = halves     ? run<float, uint16_t>(c, threads)
                            : runs % 2 ? run<double, double>(c, threads)
                                       : run<float, float>(c, threads);
          ++runs;
          if (good) continue;
          ++failures;
          std::printf("failed: cell %d, shape %d %d %d %d, scopes %d %d %d, options %d\n", int(cell),
                      int(s[0]), int(s[1]), int(s[2]), int(s[3]), int(p[0]), int(p[1]), int(p[2]),
                      int(options));
        }
  std::printf("%s: %d runs, %d failures\n", rnnorm_isa(), runs, failures);
  return failures != 0;
}
