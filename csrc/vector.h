// vectors of the build's width, and the functions of a cell on them
#pragma once
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <immintrin.h>
#endif

// bytes in a register: 64 for AVX-512, 32 for AVX2, 16 elsewhere
#ifdef RNNORM_VECTOR_BYTES
#elif defined(__AVX512F__)
#define RNNORM_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define RNNORM_VECTOR_BYTES 32
#else
#define RNNORM_VECTOR_BYTES 16
#endif

#define RNNORM_INLINE inline __attribute__((always_inline))

// everything has internal linkage, so that builds for different instruction sets never mix
namespace rnnorm {
namespace {

template <class T>
constexpr int widest = RNNORM_VECTOR_BYTES / int(sizeof(T));

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = int32_t;
};
template <>
struct Bits<double> {
  using type = int64_t;
};
template <>
struct Bits<int32_t> {
  using type = int32_t;
};

template <class T, int W>
struct Lanes {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
  // bfloat16 numbers are read in pairs, which lie where one of them does
  typedef T anywhere __attribute__((vector_size(W * sizeof(T)), aligned(2), may_alias));
  typedef typename Bits<T>::type bits __attribute__((vector_size(W * sizeof(T))));
};

template <class T, int W>
using Vec = typename Lanes<T, W>::type;

template <int W, class T>
RNNORM_INLINE Vec<T, W> load(const T* p) {
  return *reinterpret_cast<const typename Lanes<T, W>::anywhere*>(p);
}

template <int W, class T>
RNNORM_INLINE void store(T* p, Vec<T, W> v) {
  *reinterpret_cast<typename Lanes<T, W>::anywhere*>(p) = v;
}

// the first `count` lanes, for a tile whose last units do not exist
template <int W, class T>
RNNORM_INLINE Vec<T, W> load_some(const T* p, int64_t count) {
  if (count >= W) return load<W>(p);
  Vec<T, W> v{};
  if (count > 0) std::memcpy(&v, p, size_t(count) * sizeof(T));
  return v;
}

template <int W, class T>
RNNORM_INLINE void store_some(T* p, Vec<T, W> v, int64_t count) {
  if (count >= W)
    store<W>(p, v);
  else if (count > 0)
    std::memcpy(p, &v, size_t(count) * sizeof(T));
}

// the first `count` of W bytes as numbers, zero beyond
template <int W, class T>
RNNORM_INLINE Vec<T, W> from_bytes(const uint8_t* p, int64_t count) {
  typedef uint8_t Bytes __attribute__((vector_size(W)));
  Bytes v{};
  if (count >= W)
    std::memcpy(&v, p, W);
  else if (count > 0)
    std::memcpy(&v, p, size_t(count));
  using N = typename Lanes<T, W>::bits;
  return __builtin_convertvector(__builtin_convertvector(v, N), Vec<T, W>);
}

template <int W, class T>
RNNORM_INLINE Vec<T, W> all(T value) {
  return Vec<T, W>{} + value;
}

// the sum of all lanes, by halves
template <int W, class T>
RNNORM_INLINE T lane_sum(Vec<T, W> v) {
  if constexpr (W == 1) {
    return v[0];
  } else {
    Vec<T, W / 2> halves[2];
    std::memcpy(halves, &v, sizeof(v));
    return lane_sum<W / 2, T>(halves[0] + halves[1]);
  }
}

RNNORM_INLINE float root(float x) { return __builtin_sqrtf(x); }
RNNORM_INLINE double root(double x) { return __builtin_sqrt(x); }

// 1 / sqrt(x)
template <int W, class T>
RNNORM_INLINE Vec<T, W> inverse_root(Vec<T, W> x) {
  T lanes[W];
  store<W>(lanes, x);
  for (int k = 0; k < W; ++k) lanes[k] = root(lanes[k]);
  return T(1) / load<W>(lanes);
}

// lanes of a and b by number, those of b from W on
template <int W, class V, class N>
RNNORM_INLINE V shuffle(V a, V b, N numbers) {
#ifdef __clang__
  V result{};
#pragma GCC unroll 16
  for (int lane = 0; lane < W; ++lane)
    result[lane] = numbers[lane] < W ? a[numbers[lane]] : b[numbers[lane] - W];
  return result;
#else
  return __builtin_shuffle(a, b, numbers);
#endif
}

// W rows of W values, `from_stride` numbers of their kind and `to_stride` values apart, become each
// other's columns
template <int W, class Number, class T>
RNNORM_INLINE void transpose(const Number* from, int64_t from_stride, T* to, int64_t to_stride) {
  using N = typename Lanes<T, W>::bits;
  Vec<T, W> rows[W];
#pragma GCC unroll 16
  for (int r = 0; r < W; ++r)
    rows[r] = load<W>(reinterpret_cast<const T*>(from + r * from_stride));
  // swaps one bit of the row's index with the same bit of the lane's
#pragma GCC unroll 4
  for (int bit = 1; bit < W; bit *= 2) {
    N low{}, high{};
#pragma GCC unroll 16
    for (int lane = 0; lane < W; ++lane) {
      low[lane] = lane & bit ? W + lane - bit : lane;
      high[lane] = lane & bit ? W + lane : lane + bit;
    }
#pragma GCC unroll 16
    for (int r = 0; r < W; ++r)
      if (!(r & bit)) {
        const auto a = rows[r], b = rows[r + bit];
        rows[r] = shuffle<W>(a, b, low);
        rows[r + bit] = shuffle<W>(a, b, high);
      }
  }
#pragma GCC unroll 16
  for (int r = 0; r < W; ++r) store<W>(to + r * to_stride, rows[r]);
}

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

}  // namespace
}  // namespace rnnorm
