// vectors of the build's width
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

// lanes of a vector of units, of which a tile has U
template <class T, int U>
constexpr int lanes_of = U < widest<T> ? U : widest<T>;

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

template <int W, class T>
RNNORM_INLINE Vec<T, W> square_root(Vec<T, W> x) {
  T lanes[W];
  store<W>(lanes, x);
  for (int k = 0; k < W; ++k) lanes[k] = root(lanes[k]);
  return load<W>(lanes);
}

template <int W, class T>
RNNORM_INLINE Vec<T, W> inverse_root(Vec<T, W> x) {
  return T(1) / square_root<W, T>(x);
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

}  // namespace
}  // namespace rnnorm
