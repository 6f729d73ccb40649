// The functions of a cell's equations: exact as torch's at NaN.

// of the recurrent product; FP32 multiplies a number as the sum of two of TF32
enum Precision { BF16, FP16, TF32, FP32 };
constexpr bool HALF = PRECISION == BF16 || PRECISION == FP16;

DEVICE float exponential(float x) { return HALF ? __expf(x) : expf(x); }
DEVICE float sigmoid(float x) { return 1.f / (1.f + exponential(-x)); }
DEVICE float tanh_(float x) {
  const float e = exponential(-2.f * fabsf(x)), y = (1.f - e) / (1.f + e);
  return x < 0.f ? -y : y;
}
// CUDA's own would drop NaN
DEVICE float rectifier(float x) { return x < 0.f ? 0.f : x; }
DEVICE float minimum(float a, float b) { return a < b || a != a ? a : b; }
DEVICE float maximum(float a, float b) { return a > b || a != a ? a : b; }
