// The forward pass of many steps in one launch.

struct ForwardArguments {
  const Term* x;        // finished input terms of all frames, gate beside gate
  Number* z;            // raw recurrent terms of all frames, or null if nobody reads them
  const float* before;  // states beside h before the first of these steps
  const float* before_h; // h before the first of these steps
  float *c, *h;         // states beside h, and h, of all frames; h may be null
  float* fresh;         // the first state beside h as its site sees it, or null
  Number* narrow;       // h in the type of the product
  const Number* seen;   // h before the first of these steps, in the type of the product
  const Number* weight; // W_hh
  Site hidden, out;
  const i64* starts;    // the first frame of each step of the call and of the one after the last
  Extra extra;
  Exchange exchange;
  i64 before_pitch, pitch; // from one state beside h to the next, before the steps and of all frames
  int first, stop, units;
  float eps;
};

// Statistics of a unit's values at a row that are given.
DEVICE void load_given(const Site& site, const Thread& my, int past, int row, int count, int g, float& mean,
                       float& var) {
  const i64 at = ((i64)(site.row + past * site.skip + site.pitch * row) * count + g) * my.units + my.unit;
  mean = site.mean[at], var = site.var[at];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) forward(const ForwardArguments a) {
  const Thread my(a.units);
  char* space = shared_space();
  const Sums sums(space);
  char* weight = space + FIXED_BYTES;
  char* stages = weight + a.exchange.pieces * COLUMNS * 16;
  const Exchange& e = a.exchange;
  Barrier barrier(e.state, sums.given_up);
  Copies copies(space, stages);
  load_weight(a.weight, weight, a.units, e.pieces);
  __syncthreads();
#if BULK
  if (my.warp == WARPS) {
    if (my.lane) return;
    for (int i = 0; i < (a.stop - a.first) * PRODUCTS; ++i) {
      const int t = a.first + i / PRODUCTS;
      copies.run(e, barrier, 1 + i * ARRIVALS, i & 1, (int)(a.starts[t + 1] - a.starts[t]));
    }
    return;
  }
#endif

  i64 start = a.starts[a.first];
  int n = (int)(a.starts[a.first + 1] - start);
  float gamma[GATES], shift[GATES], gamma_out, shift_out;
  load_scales(a.hidden, a.out, my, gamma, shift, gamma_out, shift_out);
  float weights[SLOTS];
  load_weights(a.extra, my, weights);
  // h and the other states are those that the next step reads
  Step s[R];
  float x[R][GATES];
  UNROLL for (int j = 0; j < R; ++j) {
    const int row = my.row(j);
    const bool valid = my.here && row < n, goes_on = valid && !a.extra.anew(a.first, row);
    UNROLL for (int k = 0; k < SLOTS; ++k) s[j].weight[k] = weights[k];
    UNROLL for (int k = 0; k < STATES; ++k)
      s[j].before[k] = goes_on ? a.before[k * a.before_pitch + my.at(row)] : 0.f;
    s[j].h = KEEPS_H && goes_on ? a.before_h[my.at(row)] : 0.f;
    const float seen = goes_on ? widen(a.seen[my.at(row)]) : 0.f;
    s[j].seen = valid ? drawn(a.extra.hidden, a.first, row, my.unit, 1.f) : 1.f;
    if (valid) put(e, 0, my.unit, row, seen * s[j].seen);
    UNROLL for (int g = 0; g < GATES; ++g) x[j][g] = valid ? widen(a.x[my.at(start + row, g)]) : 0.f;
  }
  barrier.arrive();

  int products = 0;
  for (int t = a.first; t < a.stop; ++t) {
    const int past = t - a.first;
    float mean[R][GATES], var[R][GATES], mean_out[R], var_out[R];
    UNROLL for (int j = 0; j < R; ++j) {
      const int row = my.row(j);
      mean_out[j] = 0.f, var_out[j] = 1.f;
      UNROLL for (int g = 0; g < GATES; ++g) mean[j][g] = 0.f, var[j][g] = 1.f;
      if (!my.here || row >= n) continue;
      if constexpr (HIDDEN == GIVEN)
        UNROLL for (int g = 0; g < GATES; ++g) load_given(a.hidden, my, past, row, GATES, g, mean[j][g], var[j][g]);
      if constexpr (OUT == GIVEN) load_given(a.out, my, past, row, 1, 0, mean_out[j], var_out[j]);
    }
    float z[R][GATES], y[R][GATES];
    UNROLL for (int part = 0; part < PRODUCTS; ++part, ++products) {
      product(e, barrier, copies, products & 1, weight, stages, n);
      const float poison = *sums.given_up ? __uint_as_float(0x7fffffffu) : 0.f;
      UNROLL for (int j = 0; j < R; ++j) {
        const int row = my.row(j);
        float found[GATES];
        UNROLL for (int g = 0; g < GATES; ++g) found[g] = 0.f;
        if (my.here && row < n) entries<GATES>(e, stages, row, my.u, found);
        UNROLL for (int g = 0; g < GATES; ++g) {
          if (product_of(g) == part) z[j][g] = rounded(found[g]) + poison;
          else if (part == 0) z[j][g] = 0.f;
          y[j][g] = JOINT ? z[j][g] + x[j][g] : z[j][g];
        }
      }
      if constexpr (HIDDEN == OWN && OVER_UNITS) {
        UNROLL for (int j = 0; j < R; ++j) leave_moments<GATES>(e, my, 0, my.row(j), my.row(j) < n, y[j]);
        gather_parts<true>(e, my, sums, barrier, 0, 0, GROUPS, n);
        UNROLL for (int j = 0; j < R; ++j) UNROLL for (int g = 0; g < GATES; ++g) {
          const float* row = sums.rows[0] + (min(my.row(j), n - 1) * GROUPS + group_of(g)) * 2;
          mean[j][g] = row[0], var[j][g] = row[1];
        }
      } else if constexpr (HIDDEN == OWN) {
        moments_over_rows<GATES>(y, my, sums, 0, n, mean[0], var[0]);
        UNROLL for (int j = 1; j < R; ++j) UNROLL for (int g = 0; g < GATES; ++g)
          mean[j][g] = mean[0][g], var[j][g] = var[0][g];
      }
      UNROLL for (int j = 0; j < R; ++j) {
        const int row = my.row(j);
        float inverse;
        UNROLL for (int g = 0; g < GATES; ++g) {
          if (HIDDEN != OFF) y[j][g] = standardise(y[j][g], mean[j][g], var[j][g], a.eps, inverse) * gamma[g];
          s[j].x[g] = JOINT ? 0.f : x[j][g];
          s[j].y[g] = y[j][g] + shift[g];
        }
        const bool valid = my.here && row < n;
        s[j].mask = valid ? drawn(a.extra.candidate, t, row, my.unit, 1.f) : 1.f;
        if (part + 1 < PRODUCTS && valid) put(e, (products + 1) & 1, my.unit, row, second_operand(s[j]));
      }
      if (part + 1 < PRODUCTS) barrier.arrive();
    }
    float fresh[R][1];
    UNROLL for (int j = 0; j < R; ++j) {
      first_half(s[j]);
      fresh[j][0] = HAS_SITE ? s[j].states[0] : 0.f;
    }
    if constexpr (OUT == OWN && OVER_UNITS) {
      UNROLL for (int j = 0; j < R; ++j) leave_moments<1>(e, my, GROUPS, my.row(j), my.row(j) < n, fresh[j]);
      gather_parts<true>(e, my, sums, barrier, 1, GROUPS, 1, n);
      UNROLL for (int j = 0; j < R; ++j) {
        const float* row = sums.rows[1] + min(my.row(j), n - 1) * 2;
        mean_out[j] = row[0], var_out[j] = row[1];
      }
    } else if constexpr (OUT == OWN) {
      float m[1], v[1];
      moments_over_rows<1>(fresh, my, sums, 1, n, m, v);
      UNROLL for (int j = 0; j < R; ++j) mean_out[j] = m[0], var_out[j] = v[0];
    }
    float h[R];
    UNROLL for (int j = 0; j < R; ++j) {
      const int row = my.row(j);
      float inverse, last[1 + MORE];
      last[0] = s[j].h;
      UNROLL for (int k = 0; k < STATES; ++k) last[1 + k] = s[j].before[k];
      s[j].site = fresh[j][0];
      if (OUT != OFF)
        s[j].site = standardise(s[j].site, mean_out[j], var_out[j], a.eps, inverse) * gamma_out + shift_out;
      h[j] = second_half(s[j]);
      UNROLL for (int k = 0; k < STATES; ++k) s[j].before[k] = CARRY && k == 0 ? s[j].site : s[j].states[k];
      if (DROPS && my.here && row < n) {
        h[j] = zone_out(a.extra.zone_h, t, row, my.unit, last[0], h[j]);
        if (STATES) s[j].before[0] = zone_out(a.extra.zone_c, t, row, my.unit, last[1], s[j].before[0]);
      }
      s[j].h = h[j];
      if (!my.here || row >= n || t + 1 == a.stop) continue;
      const float seen = a.extra.anew(t + 1, row) ? 0.f : h[j];
      s[j].seen = drawn(a.extra.hidden, t + 1, row, my.unit, 1.f);
      put(e, products & 1, my.unit, row, seen * s[j].seen);
    }
    if (t + 1 < a.stop) barrier.arrive();

    // the next wait hides the time of these stores and loads
    const i64 next = start + n;
    const int later = t + 1 < a.stop ? (int)(a.starts[t + 2] - next) : 0;
    UNROLL for (int j = 0; j < R; ++j) {
      const int row = my.row(j);
      if (!my.here || row >= n) continue;
      const i64 at = my.at(start + row);
      if (a.z) UNROLL for (int g = 0; g < GATES; ++g) narrow_to(a.z[my.at(start + row, g)], z[j][g]);
      UNROLL for (int k = 0; k < STATES; ++k) a.c[k * a.pitch + at] = s[j].before[k];
      if ((DROPS || CARRY) && HAS_SITE && a.fresh) a.fresh[at] = fresh[j][0];
      if (a.h) a.h[at] = h[j];
      narrow_to(a.narrow[at], h[j]);
      if (!OVER_UNITS && row == 0) {
        if (HIDDEN == OWN) UNROLL for (int g = 0; g < GATES; ++g) {
          const i64 to = ((i64)(a.hidden.row + past * a.hidden.skip) * GATES + g) * a.units + my.unit;
          a.hidden.mean[to] = mean[0][g], a.hidden.var[to] = var[0][g];
        }
        if (OUT == OWN) {
          const i64 to = (i64)(a.out.row + past * a.out.skip) * a.units + my.unit;
          a.out.mean[to] = mean_out[0], a.out.var[to] = var_out[0];
        }
      }
      if (row >= later) continue;
      UNROLL for (int g = 0; g < GATES; ++g) x[j][g] = widen(a.x[my.at(next + row, g)]);
      if (!a.extra.anew(t + 1, row)) continue;
      s[j].h = 0.f;
      UNROLL for (int k = 0; k < STATES; ++k) s[j].before[k] = 0.f;
    }
    start = next, n = later;
  }
}
