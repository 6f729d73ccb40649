// the functions of cells on vectors
#pragma once
#include "vector.h"

namespace rnnorm {
namespace {

// x, or the bound that it lies beyond; NaN stays NaN
template <int W>
RNNORM_INLINE Vec<float, W> within(Vec<float, W> x, float low, float high) {
  using V = Vec<float, W>;
  const V least = all<W>(low), most = all<W>(high);
  // compilers make two instructions of each comparison; these return their second operand for NaN
#ifdef __AVX512F__
  // masked, as GCC 12 warns of an uninitialised register in the others
  constexpr __mmask16 every = 0xffff;
  if constexpr (W == 16)
    return (V)_mm512_maskz_min_ps(every, (__m512)most,
                                  _mm512_maskz_max_ps(every, (__m512)least, (__m512)x));
#endif
#ifdef __AVX__
  if constexpr (W == 8)
    return (V)_mm256_min_ps((__m256)most, _mm256_max_ps((__m256)least, (__m256)x));
#endif
#ifdef __SSE2__
  if constexpr (W == 4) return (V)_mm_min_ps((__m128)most, _mm_max_ps((__m128)least, (__m128)x));
#endif
  x = x < low ? least : x;
  return x > high ? most : x;
}

// e^x by x = n ln 2 + r, within 2 units in the last place
template <int W>
RNNORM_INLINE Vec<float, W> exponential(Vec<float, W> x) {
  using V = Vec<float, W>;
  using N = typename Lanes<float, W>::bits;
  x = within<W>(x, -87.0f, 88.0f);
  const float shifter = 12582912.0f;  // 1.5 * 2^23 rounds to an integer kept in the low bits
  V shifted = x * 1.44269504f + shifter;
  V n = shifted - shifter;
  V r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  V p = all<W>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  return p * (V)(((N)shifted + 127) << 23);
}

template <int W>
RNNORM_INLINE Vec<double, W> exponential(Vec<double, W> x) {
  using V = Vec<double, W>;
  using N = typename Lanes<double, W>::bits;
  x = x < -708.0 ? all<W>(-708.0) : x;
  x = x > 709.0 ? all<W>(709.0) : x;
  const double shifter = 6755399441055744.0;  // 1.5 * 2^52
  V shifted = x * 1.4426950408889634 + shifter;
  V n = shifted - shifter;
  V r = x - n * 6.93145751953125e-1;
  r = r - n * 1.42860682030941723212e-6;
  V p = all<W>(1.0 / 6227020800.0);
  const double inverse_factorial[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                      1.0 / 40320,     1.0 / 5040,     1.0 / 720,     1.0 / 120,
                                      1.0 / 24,        1.0 / 6,        0.5,           1.0,
                                      1.0};
#pragma GCC unroll 13
  for (int k = 0; k < 13; ++k) p = p * r + inverse_factorial[k];
  return p * (V)(((N)shifted + 1023) << 52);
}

template <int W, class T>
RNNORM_INLINE Vec<T, W> sigmoid(Vec<T, W> x) {
  return T(1) / (T(1) + exponential<W>(-x));
}

// a rational minimax approximation; |tanh| is 1 in float beyond the bound
template <int W>
RNNORM_INLINE Vec<float, W> hyperbolic_tangent(Vec<float, W> x) {
  using V = Vec<float, W>;
  const float bound = 7.90531110763549805f;
  x = within<W>(x, -bound, bound);
  V s = x * x;
  V p = all<W>(-2.76076847742355e-16f);
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  V q = all<W>(1.19825839466702e-06f);
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}

template <int W>
RNNORM_INLINE Vec<double, W> hyperbolic_tangent(Vec<double, W> x) {
  using V = Vec<double, W>;
  V size = x < 0.0 ? -x : x;
  V far = 1.0 - 2.0 / (exponential<W>(size + size) + 1.0);
  far = x < 0.0 ? -far : far;
  V s = x * x;
  V p = (-9.64399179425052238628e-1 * s - 9.92877231001918586564e1) * s - 1.61468768441708447952e3;
  V q = ((s + 1.12811678491632931402e2) * s + 2.23548839060100448583e3) * s +
        4.84406305325125486048e3;
  return size < 0.625 ? x + x * s * p / q : far;
}

template <int W, class T>
RNNORM_INLINE Vec<T, W> rectifier(Vec<T, W> z) {
  return z < T(0) ? Vec<T, W>{} : z;
}

template <int W, class T>
RNNORM_INLINE Vec<T, W> magnitude(Vec<T, W> x) {
  // not of a sign alone, as -0 has one
  return x <= T(0) ? T(0) - x : x;
}

// as torch's, NaN if either is NaN
template <int W, class T>
RNNORM_INLINE Vec<T, W> minimum(Vec<T, W> a, Vec<T, W> b) {
  return a > b ? b : b != b ? b : a;
}
template <int W, class T>
RNNORM_INLINE Vec<T, W> maximum(Vec<T, W> a, Vec<T, W> b) {
  return a < b ? b : b != b ? b : a;
}

// e^x also where it is infinite, or too small for `exponential`, which would not vanish
template <int W, class T>
RNNORM_INLINE Vec<T, W> power_of_e(Vec<T, W> x) {
  constexpr bool narrow = sizeof(T) == 4;
  const T low = narrow ? T(-87) : T(-708), high = narrow ? T(88) : T(709);
  // beyond these bounds by way of the square of e^(x/2), which may overflow or underflow itself
  const Vec<T, W> half = exponential<W>(x * T(0.5));
  const Vec<T, W> far = half * half;
  return x < low ? far : x > high ? far : exponential<W>(x);
}

// the logarithm of x = 2^k (1 + f) by a series in f / (2 + f)
template <int W, class T>
RNNORM_INLINE Vec<T, W> logarithm(Vec<T, W> x) {
  using V = Vec<T, W>;
  using N = typename Lanes<T, W>::bits;
  constexpr bool narrow = sizeof(T) == 4;
  constexpr int digits = narrow ? 23 : 52;
  const T least = narrow ? T(1.17549435e-38) : T(2.2250738585072014e-308);
  const T scale = narrow ? T(1 << 25) : T(int64_t(1) << 54);
  // numbers without a leading one
  const auto small = x < least;
  const V y = small ? x * scale : x;
  const N bits = (N)y;
  // 1 + f lies between the square roots of 1/2 and 2
  const N root_of_half = (N)all<W>(T(0.70710678118654752));
  const N above = bits - root_of_half;
  const N k = above >> digits;
  const V m = (V)(bits - (k << digits));
  V n = __builtin_convertvector(k, V);
  n = small ? n - T(narrow ? 25 : 54) : n;
  const V f = m - T(1), s = f / (T(2) + f), z = s * s;
  V p;
  if constexpr (narrow) {
    p = all<W>(T(0.24279078841));
    p = p * z + T(0.28498786688);
    p = p * z + T(0.40000972152);
    p = p * z + T(0.66666662693);
  } else {
    p = all<W>(T(1.479819860511658591e-01));
    p = p * z + T(1.531383769920937332e-01);
    p = p * z + T(1.818357216161805012e-01);
    p = p * z + T(2.222219843214978396e-01);
    p = p * z + T(2.857142874366239149e-01);
    p = p * z + T(3.999999999940941908e-01);
    p = p * z + T(6.666666666666735130e-01);
  }
  p = p * z;
  const V half = f * f * T(0.5);
  const T high = narrow ? T(6.9313812256e-01) : T(6.93147180369123816490e-01);
  const T low = narrow ? T(9.0580006145e-06) : T(1.90821492927058770002e-10);
  V y_log = n * high - ((half - (s * (half + p) + n * low)) - f);
  const T infinite = T(__builtin_inf());
  y_log = x == infinite ? x : y_log;
  y_log = x == T(0) ? all<W>(-infinite) : y_log;
  return x >= T(0) ? y_log : all<W>(T(__builtin_nan("")));
}

// log(1 + x), exact also for small x
template <int W, class T>
RNNORM_INLINE Vec<T, W> logarithm_of_more(Vec<T, W> x) {
  using V = Vec<T, W>;
  const V more = T(1) + x, rounded = more - T(1);
  const V quotient = logarithm<W, T>(more) * (x / rounded);
  return rounded == T(0) ? x : more == T(__builtin_inf()) ? x : quotient;
}

}  // namespace
}  // namespace rnnorm
