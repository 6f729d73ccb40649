// what matrices are made of, and what a product takes of them at once: one number or, in a build
// that multiplies in bfloat16, a pair of numbers that are neighbours along the summed index k
#pragma once
#include "vector.h"

namespace rnnorm {
namespace {

#ifdef RNNORM_PAIRS
constexpr int per_factor = 2;
// the upper half of a float
template <class T>
using Stored = uint16_t;
// two of them in a word, the first in its lower half
template <class T>
using Factor = int32_t;
#else
constexpr int per_factor = 1;
template <class T>
using Stored = T;
template <class T>
using Factor = T;
#endif
constexpr bool paired = per_factor == 2;

// the number of factors that k numbers fill, the last perhaps with a zero
RNNORM_INLINE int64_t factors(int64_t k) { return (k + per_factor - 1) / per_factor; }
// AMX reads rows of 16 factors at a time
#ifdef RNNORM_AMX
constexpr int64_t factors_at_once = 16;
#else
constexpr int64_t factors_at_once = 1;
#endif
// the number of factors in a row of k numbers as products read it, the last ones perhaps zero
RNNORM_INLINE int64_t row_factors(int64_t k) {
  return (factors(k) + factors_at_once - 1) / factors_at_once * factors_at_once;
}

// rows of a matrix A that a product reads: factor (r, k) is at row(r) + (k / length) * jump +
// (k % length) * step
template <class T>
struct RowsOf {
  const Factor<T>* data;
  int64_t stride;    // from row to row, in factors as all that follow
  int64_t step;      // from k to k + 1
  int64_t segments;  // k runs over segments * length
  int64_t length;
  int64_t jump;
};

template <class F>
RNNORM_INLINE F load_factor(const F* p) {
  if constexpr (!paired) return *p;
  // a pair is aligned as a single bfloat16 number is
  F value;
  std::memcpy(&value, p, sizeof(F));
  return value;
}

#ifdef RNNORM_PAIRS
template <int W>
RNNORM_INLINE Vec<float, W> add_product(Vec<float, W> sum, Vec<int32_t, W> a, Vec<int32_t, W> b) {
#ifdef __AVX512BF16__
  if constexpr (W == 16)
    return (Vec<float, W>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  if constexpr (W == 8)
    return (Vec<float, W>)_mm256_dpbf16_ps((__m256)sum, (__m256bh)a, (__m256bh)b);
  if constexpr (W == 4) return (Vec<float, W>)_mm_dpbf16_ps((__m128)sum, (__m128bh)a, (__m128bh)b);
#else
  // what the instruction computes, but for subnormal numbers
  using V = Vec<float, W>;
  sum += (V)(a & int32_t(0xffff0000)) * (V)(b & int32_t(0xffff0000));
  return sum + (V)(a << 16) * (V)(b << 16);
#endif
}
template <int W>
RNNORM_INLINE Vec<float, W> add_product(Vec<float, W> sum, int32_t a, Vec<int32_t, W> b) {
  return add_product<W>(sum, all<W>(a), b);
}

RNNORM_INLINE float widened(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

// floats rounded to the nearest, ties to even; NaN stays NaN
template <int W>
RNNORM_INLINE void store_narrow(uint16_t* p, Vec<float, W> v) {
#ifdef __AVX512BF16__
  if constexpr (W == 16) {
    const auto halves = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(p, &halves, sizeof(halves));
    return;
  }
#endif
  float numbers[W];
  store<W>(numbers, v);
  for (int k = 0; k < W; ++k) {
    uint32_t bits;
    std::memcpy(&bits, numbers + k, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    p[k] = uint16_t(numbers[k] == numbers[k] ? rounded : 0x7fc0);
  }
}

RNNORM_INLINE void copy(const float* from, int64_t count, uint16_t* to) {
  constexpr int W = widest<float>;
  int64_t k = 0;
  for (; k + W <= count; k += W) store_narrow<W>(to + k, load<W>(from + k));
  if (k == count) return;
  uint16_t last[W];
  store_narrow<W>(last, load_some<W>(from + k, count - k));
  std::memcpy(to + k, last, size_t(count - k) * sizeof(uint16_t));
}
#else
// the factor a may be one number for all lanes
template <int W, class V, class A>
RNNORM_INLINE V add_product(V sum, A a, V b) {
  return sum + a * b;
}
template <class T>
RNNORM_INLINE T widened(T number) {
  return number;
}
#endif

template <class T>
RNNORM_INLINE void copy(const T* from, int64_t count, T* to) {
  std::memcpy(to, from, size_t(count) * sizeof(T));
}

}  // namespace
}  // namespace rnnorm
