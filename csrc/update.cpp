// the update of population statistics by those that a forward pass took; the compiler adds no fused
// multiply-adds to those that are written
#include <cmath>
#include <limits>

#include "layer.h"

namespace {

template <class T>
bool all_finite(const T* numbers, int64_t count, T factor) {
  bool finite = true;
  for (int64_t k = 0; k < count; ++k)
    finite &= std::abs(numbers[k] * factor) <= std::numeric_limits<T>::max();
  return finite;
}

// exact at both ends, and with torch.lerp's bits
template <class T>
void interpolate(T* kept, const T* fresh, int64_t count, T factor, T weight) {
  const bool near = weight < T(0.5);
  const T share = near ? weight : weight - T(1);
  for (int64_t k = 0; k < count; ++k) {
    const T to = fresh[k] * factor, from = near ? kept[k] : to;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    kept[k] = std::fma(share, to - kept[k], from);
#else
    kept[k] = share * (to - kept[k]) + from;
#endif
  }
}

template <class T>
void update(const rnnorm_population& p) {
  for (int64_t t = 0; t < p.steps; ++t) {
    const int64_t m = p.counts ? p.counts[t] : p.count, at = t * p.features;
    const T *mean = static_cast<const T*>(p.taken_mean) + at,
            *var = static_cast<const T*>(p.taken_var) + at;
    const T unbiased = T(m) / T(m > 1 ? m - 1 : 1);
    if (m <= 0 || !all_finite(mean, p.features, T(1)) || !all_finite(var, p.features, unbiased))
      continue;
    const int64_t rows = p.rows[t] += m, batches = p.batches[t] += 1;
    const auto share = [](int64_t part, int64_t all) { return T(part) / T(all > 1 ? all : 1); };
    T mean_weight = share(m, rows), var_weight = share(m - 1, rows - batches);
    if (p.momentum >= 0) mean_weight = var_weight = std::fmax(share(1, batches), T(p.momentum));
    interpolate(static_cast<T*>(p.mean) + at, mean, p.features, T(1), mean_weight);
    interpolate(static_cast<T*>(p.var) + at, var, p.features, unbiased, var_weight);
  }
}

}  // namespace

extern "C" void RNNORM_UPDATE(const rnnorm_population* of, int64_t sites, int64_t is_double) {
  for (int64_t i = 0; i < sites; ++i)
    is_double ? update<double>(of[i]) : update<float>(of[i]);
}
