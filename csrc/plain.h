// a layer as a plain loop in double precision: what the kernels are compared with
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "layer.h"

namespace plain {

using Numbers = std::vector<double>;

// every input may be moved by `distance` along this, for the difference quotient of a loss
inline double direction(int64_t k) { return std::sin(double(k + 1)); }

// a cell's gates, and those of the first of its two blocks of row statistics
inline int64_t gates_of(int64_t cell) {
  switch (cell) {
    case RNNORM_LSTM: return 4;
    case RNNORM_GRU:
    case RNNORM_GRU_BOTH: return 3;
    case RNNORM_LIGRU: return 2;
    default: return 1;
  }
}
inline bool independent(int64_t cell) {
  return cell == RNNORM_INDRNN_TANH || cell == RNNORM_INDRNN_RELU;
}
inline int64_t block_gates(int64_t cell, int64_t over) {
  if (over == RNNORM_OVER_GATE) return 1;
  const bool apart = cell == RNNORM_GRU || cell == RNNORM_GRU_BOTH;
  return apart && over == RNNORM_OVER_BLOCKS ? 2 : gates_of(cell);
}

// whether a mask has the units of h, not those of the cell
inline bool is_of_h(int64_t place) { return place == RNNORM_SEEN || place == RNNORM_ZONE_H; }

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

template <class T>
class Layer {
 public:
  Numbers output, h_n, c_n, all_c;

  Layer(const rnnorm_layer& layer, double distance)
      : output(size_t(layer.T * layer.B * layer.R)),
        all_c(size_t(layer.all_c ? layer.T * layer.B * layer.H : 0)),
        a(layer),
        F(gates_of(layer.cell) * layer.H) {
    const auto moved = [&](const void* numbers, int64_t count, bool stored = false) {
      Numbers result(size_t(numbers ? count : 0));
      for (int64_t k = 0; k < int64_t(result.size()); ++k)
        result[k] = (stored ? number(a, numbers, k) : fixed(numbers, k)) + distance * direction(k);
      return result;
    };
    x = moved(a.x, a.T * a.B * a.I, true);
    h_n = moved(a.h0, a.B * a.R);
    c_n = moved(a.c0, a.B * a.H);
    weight_ih = moved(a.weight_ih, F * a.I, true);
    weight_hh = moved(a.weight_hh, recurrent_weights(a), !independent(a.cell));
    weight_hr = moved(a.weight_hr, a.R * a.H, true);
    bias_ih = moved(a.bias_ih, F);
    bias_hh = moved(a.bias_hh, F);
    for (int k = 0; k < RNNORM_SITES; ++k)
      gamma[k] = moved(a.site[k].gamma, k == RNNORM_CELL ? a.H : F);
    beta = moved(a.site[RNNORM_CELL].beta, a.H);
    for (int k = 0; k < RNNORM_PEEPHOLES; ++k) {
      peephole[k] = moved(a.peephole[k], a.H);
      peephole[k].resize(size_t(a.H));
    }
    if (a.min_rows >= 0)
      while (last_good + 1 < a.T && a.sizes[last_good + 1] >= a.min_rows) ++last_good;
    run();
  }

  static int64_t recurrent_weights(const rnnorm_layer& a) {
    return independent(a.cell) ? a.H : gates_of(a.cell) * a.H * (a.R / a.heads);
  }

  // a number of x, of a weight, or of the gradient of one
  static double number(const rnnorm_layer& a, const void* numbers, int64_t k) {
    if (a.numbers != RNNORM_BFLOAT16) return fixed(numbers, k);
    const uint32_t bits = uint32_t(static_cast<const uint16_t*>(numbers)[k]) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
  }

  // the loss whose gradients are those that the layer is given
  double loss() const {
    double sum = 0;
    for (int64_t t = 0; t < a.T; ++t) {
      const int64_t first = t * a.B, last = first + a.sizes[t];
      for (int64_t k = first * a.R; k < last * a.R; ++k) sum += fixed(a.grad_output, k) * output[k];
      for (int64_t k = first * a.H; !all_c.empty() && k < last * a.H; ++k)
        sum += fixed(a.grad_all_c, k) * all_c[k];
    }
    for (int64_t k = 0; k < a.B * a.R; ++k) sum += fixed(a.grad_h_n, k) * h_n[k];
    for (int64_t k = 0; a.grad_c_n && k < a.B * a.H; ++k) sum += fixed(a.grad_c_n, k) * c_n[k];
    return sum;
  }

 private:
  const rnnorm_layer& a;
  const int64_t F;
  int64_t last_good = -1;
  Numbers x, weight_ih, weight_hh, weight_hr, bias_ih, bias_hh, gamma[RNNORM_SITES], beta,
      peephole[RNNORM_PEEPHOLES];

  static double fixed(const void* numbers, int64_t k) { return static_cast<const T*>(numbers)[k]; }

  // what a mask says at step t of element k of the active rows
  double mask(int place, int64_t t, int64_t k, double otherwise) const {
    const rnnorm_mask& m = a.mask[place];
    if (!m.drawn) return otherwise;
    const int64_t units = is_of_h(place) ? a.R : a.H;
    return m.drawn[t * m.step + k / units * m.row + k % units] ? m.scale : 0;
  }

  // adds rows (n, heads * K) times the transpose of weight (F, K): a unit reads its head alone
  void product(const double* rows, int64_t n, int64_t K, const Numbers& weight, double* to,
               int64_t heads = 1) const {
    for (int64_t b = 0; b < n; ++b)
      for (int64_t f = 0; f < F; ++f) {
        const double* seen = rows + b * heads * K + f % a.H / (a.H / heads) * K;
        for (int64_t k = 0; k < K; ++k) to[b * F + f] += seen[k] * weight[f * K + k];
      }
  }

  void normalise(int which, Numbers& z, int64_t n, int64_t t) const {
    const rnnorm_site& site = a.site[which];
    if (!site.scope || z.empty()) return;
    const int64_t features = int64_t(z.size()) / n;
    if (site.scope >= RNNORM_ROW) return normalise_rows(which, z, features);
    const bool own = a.min_rows >= 0 && n >= a.min_rows;
    const bool earlier = !own && site.scope == RNNORM_FRAME && last_good >= 0;
    for (int64_t k = 0; k < features; ++k) {
      double mean = 0, var = 0;
      for (int64_t b = 0; own && b < n; ++b) mean += z[b * features + k] / double(n);
      for (int64_t b = 0; own && b < n; ++b)
        var += (z[b * features + k] - mean) * (z[b * features + k] - mean) / double(n);
      for (int64_t b = 0; b < n; ++b) {
        const int64_t step = t < site.constant_last ? t : site.constant_last;
        const int64_t at = step * site.constant_step + b * site.constant_row + k;
        if (earlier) {
          // a constant, so the kernel's own: it is compared where it was taken
          mean = fixed(site.mean, last_good * features + k);
          var = fixed(site.var, last_good * features + k);
        } else if (!own) {
          mean = fixed(site.constant_mean, at);
          var = fixed(site.constant_var, at);
        }
        double& value = z[b * features + k];
        value = gamma[which][k] * (value - mean) / std::sqrt(var + site.eps);
      }
    }
  }

  void normalise_rows(int which, Numbers& z, int64_t features) const {
    const rnnorm_site& site = a.site[which];
    const int64_t together =
        which == RNNORM_CELL ? features : a.H * block_gates(a.cell, site.over);
    for (int64_t row = 0; row < int64_t(z.size()); row += features)
      for (int64_t start = 0, stop; start < features; start = stop) {
        stop = start + together < features ? start + together : features;
        const double count = double(stop - start);
        double mean = 0, var = 0;
        for (int64_t k = start; site.scope == RNNORM_ROW && k < stop; ++k)
          mean += z[row + k] / count;
        for (int64_t k = start; k < stop; ++k)
          var += (z[row + k] - mean) * (z[row + k] - mean) / count;
        for (int64_t k = start; k < stop; ++k)
          z[row + k] = gamma[which][k] * (z[row + k] - mean) / std::sqrt(var + site.eps);
      }
  }

  void run() {
    Numbers all;  // W_x x of every active frame
    for (int64_t t = 0; t < a.T; ++t) {
      Numbers term(size_t(a.sizes[t] * F));
      product(x.data() + t * a.B * a.I, a.sizes[t], a.I, weight_ih, term.data());
      all.insert(all.end(), term.begin(), term.end());
    }
    const bool whole = a.site[RNNORM_INPUT].scope == RNNORM_SEQUENCE;
    if (whole && F) normalise(RNNORM_INPUT, all, int64_t(all.size()) / F, 0);
    int64_t start = 0;
    for (int64_t t = 0; t < a.T; ++t) {
      const int64_t n = a.sizes[t];
      Numbers x_term(all.begin() + start, all.begin() + start + n * F), h_term(size_t(n * F));
      start += n * F;
      if (!whole) normalise(RNNORM_INPUT, x_term, n, t);
      for (Numbers* state : {&h_n, &c_n}) {
        const int64_t units = state == &h_n ? a.R : a.H;
        for (int64_t k = 0; a.reset && !state->empty() && k < n * units; ++k)
          if (a.reset[t * a.B + k / units]) (*state)[k] = 0;
      }
      Numbers seen(h_n.begin(), h_n.begin() + n * a.R);
      for (int64_t k = 0; k < n * a.R; ++k) seen[k] *= mask(RNNORM_SEEN, t, k, 1);
      for (int64_t k = 0; independent(a.cell) && k < n * a.H; ++k)
        h_term[k] = seen[k] * weight_hh[k % a.H];
      if (!independent(a.cell))
        product(seen.data(), n, a.R / a.heads, weight_hh, h_term.data(), a.heads);
      if (a.joint)
        for (int64_t k = 0; k < n * F; ++k) h_term[k] += x_term[k], x_term[k] = 0;
      normalise(RNNORM_HIDDEN, h_term, n, t);
      for (int64_t k = 0; k < n * F; ++k) x_term[k] += bias_ih[k % F], h_term[k] += bias_hh[k % F];
      step(x_term, h_term, n, t);
      for (int64_t k = 0; k < n * a.R; ++k) output[t * a.B * a.R + k] = h_n[k];
      for (int64_t k = 0; !all_c.empty() && k < n * a.H; ++k) all_c[t * a.B * a.H + k] = c_n[k];
    }
  }

  void step(const Numbers& x_term, const Numbers& h_term, int64_t n, int64_t t) {
    const int64_t H = a.H;
    const auto sum = [&](int64_t k) { return x_term[k] + h_term[k]; };
    const auto peep = [&](int which, int64_t k, double c) { return peephole[which][k % H] * c; };
    const auto zone = [](double kept, double before, double made) {
      return kept * before + (1 - kept) * made;
    };
    Numbers made(size_t(a.cell == RNNORM_LSTM ? n * H : 0));
    for (int64_t k = 0; k < int64_t(made.size()); ++k) {
      const int64_t i = k / H * F + k % H, f = i + H, g = f + H;
      made[k] = sigmoid(sum(f) + peep(RNNORM_PEEPHOLE_F, k, c_n[k])) * c_n[k] +
                sigmoid(sum(i) + peep(RNNORM_PEEPHOLE_I, k, c_n[k])) * std::tanh(sum(g)) *
                    mask(RNNORM_CANDIDATE, t, k, 1);
    }
    Numbers cell = made;
    normalise(RNNORM_CELL, cell, n, t);
    for (int64_t k = 0; k < int64_t(made.size()); ++k) {
      cell[k] += beta.empty() ? 0 : beta[k % H];
      c_n[k] = zone(mask(RNNORM_ZONE_C, t, k, 0), c_n[k], a.carry ? cell[k] : made[k]);
    }
    Numbers projected(size_t(weight_hr.empty() ? 0 : n * H));
    for (int64_t k = 0; k < n * H; ++k) {
      const int64_t at = k / H * F + k % H;
      double& h = projected.empty() ? h_n[k] : projected[k];
      const double before = h;
      if (a.cell == RNNORM_LSTM) {
        const double o = sigmoid(sum(at + 3 * H) + peep(RNNORM_PEEPHOLE_O, k, made[k]));
        h = o * std::tanh(cell[k]);
      } else if (a.cell == RNNORM_LIGRU) {
        const double z = sigmoid(sum(at));
        h = (1 - z) * std::fmax(sum(at + H), 0.0) * mask(RNNORM_CANDIDATE, t, k, 1) + z * h;
      } else if (a.cell == RNNORM_GRU || a.cell == RNNORM_GRU_BOTH) {
        const double r = sigmoid(sum(at)), z = sigmoid(sum(at + H));
        const double gated = r * h_term[at + 2 * H], other = x_term[at + 2 * H];
        const double candidate =
            std::tanh(gated + (a.cell == RNNORM_GRU_BOTH ? r * other : other));
        h = (1 - z) * candidate * mask(RNNORM_CANDIDATE, t, k, 1) + z * h;
      } else {
        const bool tanh = a.cell == RNNORM_RNN_TANH || a.cell == RNNORM_INDRNN_TANH;
        h = tanh ? std::tanh(sum(at)) : std::fmax(sum(at), 0.0);
      }
      if (projected.empty()) h = zone(mask(RNNORM_ZONE_H, t, k, 0), before, h);
    }
    for (int64_t k = 0; !projected.empty() && k < n * a.R; ++k) {
      double made_h = 0;
      for (int64_t j = 0; j < H; ++j)
        made_h += projected[k / a.R * H + j] * weight_hr[k % a.R * H + j];
      h_n[k] = zone(mask(RNNORM_ZONE_H, t, k, 0), h_n[k], made_h);
    }
  }
};

}  // namespace plain
