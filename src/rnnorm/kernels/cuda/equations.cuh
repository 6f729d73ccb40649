// The equations of a step and their derivatives, as in rnnorm.cells. A gate's preactivation is
// x + y, the finished input term and the finished recurrent term. `before` is the state that the step
// starts from, `mask` the factor of recurrent dropout of the candidate.

// The state that a step computes: c of an LSTM, else h.
DEVICE float advance(const float (&a)[GATES], float before, float mask) {
  if constexpr (CELL == LSTM) return a[1] * before + a[0] * (a[2] * mask);
  else if constexpr (CELL == GRU) return a[2] * mask + a[1] * (before - a[2] * mask);
  else return a[0];
}

// i, f, g, o of an LSTM; r, z, n of a GRU; h of an RNN.
DEVICE void activations(const float (&x)[GATES], const float (&y)[GATES], const float (&peephole)[3],
                        float before, float mask, float (&a)[GATES]) {
  if constexpr (CELL == LSTM) {
    float i = x[0] + y[0], f = x[1] + y[1], o = x[3] + y[3];
    if (PEEPHOLES == 3) i += peephole[0] * before, f += peephole[1] * before;
    a[0] = sigmoid(i);
    a[1] = sigmoid(f);
    a[2] = tanh_(x[2] + y[2]);
    if (PEEPHOLES) o += peephole[2] * advance(a, before, mask);
    a[3] = sigmoid(o);
  } else if constexpr (CELL == GRU) {
    a[0] = sigmoid(x[0] + y[0]);
    a[1] = sigmoid(x[1] + y[1]);
    a[2] = tanh_(x[2] + a[0] * y[2]);
  } else if constexpr (CELL == RNN_TANH) {
    a[0] = tanh_(x[0] + y[0]);
  } else {
    const float z = x[0] + y[0];
    // a maximum would drop NaN
    a[0] = z < 0.f ? 0.f : z;
  }
}

// The gradients of x and y, gate by gate, from d, that of what `advance` returned, and d_o, that of
// an LSTM's preactivation of o; returns the gradient of `before`, but for that through h.
DEVICE float retreat(const float (&a)[GATES], const float (&y)[GATES], const float (&peephole)[3],
                     float before, float mask, float d, float d_o, float (&d_x)[GATES],
                     float (&d_y)[GATES]) {
  if constexpr (CELL == LSTM) {
    d_x[0] = d * (a[2] * mask) * a[0] * (1.f - a[0]);
    d_x[1] = d * before * a[1] * (1.f - a[1]);
    d_x[2] = d * a[0] * mask * (1.f - a[2] * a[2]);
    d_x[3] = d_o;
    UNROLL for (int g = 0; g < GATES; ++g) d_y[g] = d_x[g];
    if (PEEPHOLES == 3) return d * a[1] + d_x[0] * peephole[0] + d_x[1] * peephole[1];
    return d * a[1];
  } else if constexpr (CELL == GRU) {
    const float d_n = d * (1.f - a[1]) * mask * (1.f - a[2] * a[2]);
    d_x[0] = d_n * y[2] * a[0] * (1.f - a[0]);
    d_x[1] = d * (before - a[2] * mask) * a[1] * (1.f - a[1]);
    d_x[2] = d_n;
    d_y[0] = d_x[0], d_y[1] = d_x[1], d_y[2] = d_n * a[0];
    return d * a[1];
  } else {
    d_x[0] = CELL == RNN_TANH ? d * (1.f - a[0] * a[0]) : a[0] <= 0.f ? 0.f : d;
    d_y[0] = d_x[0];
    return d;
  }
}

// A value less its mean and over its deviation, and one over the deviation.
DEVICE float standardise(float value, float mean, float var, float eps, float& inverse) {
  inverse = rsqrtf(var + eps);
  return (value - mean) * inverse;
}
