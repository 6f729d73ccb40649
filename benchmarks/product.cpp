// the kernels' matrix product alone, and the multiply-adds that a core can do: product.py builds it
#include "matmul.h"

namespace {

using namespace rnnorm;
constexpr int columns = 64;  // of a panel, as of an LSTM's tile

}  // namespace

extern "C" {

// packs a weight (64 panels, K) in the layout that `multiply` reads
void pack(const float* weight, int64_t K, int64_t panels, float* to) {
  for (int64_t p = 0; p < panels; ++p, weight += columns * K, to += columns * K)
    for (int64_t column = 0; column < columns; ++column)
      for (int64_t k = 0; k < K; ++k)
        to[in_panel<float, columns>(K, k, column)] = weight[column * K + k];
}

// a (n, K) times the packed weight, panel after panel into c (panels, n, 64)
void multiply(const float* a, int64_t n, int64_t K, const float* panel, int64_t panels, float* c) {
  for (int64_t p = 0; p < panels; ++p, panel += columns * K, c += columns * n)
    product<float, columns>({a, K, 1, 1, K, 0}, n, panel, c, columns, false);
}

// does so many multiply-adds in registers, rounded up to whole ones
float multiply_adds(int64_t count) {
  using B = Block<float, columns>;
  constexpr int chains = B::R * B::N;
  using V = Vec<float, B::W>;
  // unknown to the compiler, and the sums settle at 2; chains that begin alike would become one
  volatile float half = 0.5f, one = 1.0f;
  const V times = all<B::W>(float(half)), plus = all<B::W>(float(one));
  V sum[chains];
  for (int k = 0; k < chains; ++k) sum[k] = all<B::W>(float(half) + float(k));
  for (; count > 0; count -= chains * B::W)
#pragma GCC unroll 32
    for (int k = 0; k < chains; ++k) sum[k] = sum[k] * times + plus;
  V total{};
  for (const V& one_sum : sum) total += one_sum;
  return total[0];
}
}
