// The backward pass of many steps in one launch, the last step first.

struct BackwardArguments {
  const Term* x;         // finished input terms of all frames
  const Number* z;       // raw recurrent terms of all frames
  const float* before;   // states beside h before the first of these steps
  const float* states;   // the same of all frames, as the next step reads them
  const float *before_h, *h; // h before the first of these steps and of all frames
  const float* output;   // gradient of h of all frames, without the part through the next step
  const Number* product; // gradient of h through the product of the step after the last of these
  const float* carried;  // gradients of the states beside h that the step after the last was given
  const float* last;     // gradients of the states beside h after a row's last frame
  float* carry;          // gradients of the states beside h before the first of these steps
  const float* carried_h; // gradient of h that the step after the last was given, without the product
  float* carry_h;        // gradient of h before the first of these steps, without the product
  Number* d_x;           // gradient of the input terms of all frames
  Number* d_z;           // gradient of the raw recurrent terms of all frames
  Number* operand;       // what a second product has multiplied, of all frames
  float *d_gamma, *d_shift, *d_gamma_out, *d_shift_out, *d_weight; // added to
  const Number* weight;  // W_hh
  Site hidden, out;
  const i64* starts;     // the first frame of each step of the call and of the one after the last
  Extra extra;
  Exchange exchange;
  i64 before_pitch, pitch; // from one state beside h to the next, before the steps and of all frames
  int first, stop, units, later; // later: rows of the step after the last of these
  float eps;
  int unused;
};

// Put a unit's gradients where the next product reads them: those of the terms of one product. Of two
// products each has a buffer of its own, whose other numbers remain 0.
DEVICE void put_gates(const Exchange& e, int buffer, int which, int unit, int row, const float (&d)[GATES]) {
  UNROLL for (int g = 0; g < GATES; ++g)
    if (product_of(g) == which) put(e, buffer, unit * GATES + g, row, d[g]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(const BackwardArguments a) {
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
    for (int i = 1; i < (a.stop - a.first) * PRODUCTS; ++i) {
      const int of = a.stop - 1 - (i - 1) / PRODUCTS;
      copies.run(e, barrier, i * ARRIVALS, i & 1, (int)(a.starts[of + 1] - a.starts[of]));
    }
    return;
  }
#endif

  float gamma[GATES], shift[GATES], gamma_out, shift_out;
  load_scales(a.hidden, a.out, my, gamma, shift, gamma_out, shift_out);
  // the first half is of gamma, the second of the shift
  float own[2 * GATES], own_out[2] = {0.f, 0.f}, own_weight[SLOTS];
  UNROLL for (int k = 0; k < 2 * GATES; ++k) own[k] = 0.f;
  UNROLL for (int k = 0; k < SLOTS; ++k) own_weight[k] = 0.f;
  float weights[SLOTS], carry[R][MORE], carry_h[R];
  load_weights(a.extra, my, weights);
  const i64 rows = (i64)a.extra.rows * a.units;
  UNROLL for (int j = 0; j < R; ++j) {
    const bool goes_on = my.here && my.row(j) < a.later;
    UNROLL for (int k = 0; k < STATES; ++k) carry[j][k] = goes_on ? a.carried[k * rows + my.at(my.row(j))] : 0.f;
    carry_h[j] = KEEPS_H && goes_on ? a.carried_h[my.at(my.row(j))] : 0.f;
  }

  int later = a.later, products = 0;
  for (int t = a.stop - 1; t >= a.first; --t) {
    const int past = t - a.first, back = a.stop - 1 - t;
    const i64 start = a.starts[t], earlier = t > a.first ? a.starts[t - 1] : 0;
    const int n = (int)(a.starts[t + 1] - start);

    // all that does not depend on the step after this one
    Step s[R];
    float hat[R][GATES], inverse[R][GATES], d[R], c_hat[R], c_inverse[R];
    UNROLL for (int j = 0; j < R; ++j) {
      const int row = my.row(j);
      const bool valid = my.here && row < n;
      UNROLL for (int g = 0; g < GATES; ++g) {
        const float x = valid ? widen(a.x[my.at(start + row, g)]) : 0.f;
        const float z = valid ? widen(a.z[my.at(start + row, g)]) : 0.f;
        s[j].x[g] = JOINT ? 0.f : x, s[j].y[g] = JOINT ? z + x : z;
        hat[j][g] = s[j].y[g], inverse[j][g] = 1.f;
        if constexpr (HIDDEN != OFF) {
          float mean = 0.f, var = 1.f;
          if (valid && OVER_UNITS) {
            const i64 at = (start + row) * GROUPS + group_of(g);
            mean = a.hidden.mean[at], var = a.hidden.var[at];
          } else if (valid) {
            const i64 of = a.hidden.row + past * a.hidden.skip + a.hidden.pitch * row;
            mean = a.hidden.mean[my.at(of, g)], var = a.hidden.var[my.at(of, g)];
          }
          hat[j][g] = standardise(s[j].y[g], mean, var, a.eps, inverse[j][g]);
          s[j].y[g] = hat[j][g] * gamma[g];
        }
        s[j].y[g] += shift[g];
      }
      const bool goes_on = valid && !a.extra.anew(t, row);
      UNROLL for (int k = 0; k < SLOTS; ++k) s[j].weight[k] = weights[k];
      s[j].h = 0.f;
      if (SKIPS && goes_on) s[j].h = t > a.first ? a.h[my.at(earlier + row)] : a.before_h[my.at(row)];
      UNROLL for (int k = 0; k < STATES; ++k) {
        s[j].before[k] = 0.f;
        if (!goes_on) continue;
        s[j].before[k] = t > a.first ? a.states[k * a.pitch + my.at(earlier + row)]
                                     : a.before[k * a.before_pitch + my.at(row)];
      }
      s[j].seen = valid ? drawn(a.extra.hidden, t, row, my.unit, 1.f) : 1.f;
      s[j].mask = valid ? drawn(a.extra.candidate, t, row, my.unit, 1.f) : 1.f;
      first_half(s[j]);
      d[j] = valid ? a.output[my.at(start + row)] : 0.f;
      c_hat[j] = c_inverse[j] = 0.f;
      if constexpr (HAS_SITE) {
        s[j].site = s[j].states[0];
        c_inverse[j] = 1.f;
        if constexpr (OUT != OFF) {
          float mean = 0.f, var = 1.f;
          if (valid && OVER_UNITS) {
            mean = a.out.mean[start + row], var = a.out.var[start + row];
          } else if (valid) {
            const i64 of = a.out.row + past * a.out.skip + a.out.pitch * row;
            mean = a.out.mean[my.at(of)], var = a.out.var[my.at(of)];
          }
          c_hat[j] = standardise(s[j].site, mean, var, a.eps, c_inverse[j]);
          s[j].site = c_hat[j] * gamma_out + shift_out;
        }
      }
      second_half(s[j]);
      if (valid && row >= later)
        UNROLL for (int k = 0; k < STATES; ++k) carry[j][k] += a.last[k * rows + my.at(row)];
    }

    if (back > 0) {
      product(e, barrier, copies, ++products & 1, weight, stages, later);
      const float poison = *sums.given_up ? __uint_as_float(0x7fffffffu) : 0.f;
      UNROLL for (int j = 0; j < R; ++j) {
        const int row = my.row(j);
        float sum[1] = {0.f};
        if (my.here && row < later && !a.extra.anew(t + 1, row)) {
          entries<1>(e, stages, row, my.u, sum);
          sum[0] *= drawn(a.extra.hidden, t + 1, row, my.unit, 1.f);
        }
        d[j] += sum[0] + poison;
      }
    } else {
      UNROLL for (int j = 0; j < R; ++j) {
        const int row = my.row(j);
        if (my.here && row < later && !a.extra.anew(t + 1, row))
          d[j] += widen(a.product[my.at(row)]) * drawn(a.extra.hidden, t + 1, row, my.unit, 1.f);
      }
    }

    // what zoneout leaves as it was goes to the step before, the rest to the cell
    float stays[R], stays_c[R];
    UNROLL for (int j = 0; j < R; ++j) {
      const int row = my.row(j);
      const bool valid = my.here && row < n;
      if (KEEPS_H) d[j] += carry_h[j];
      stays[j] = valid ? zoned_out(a.extra.zone_h, t, row, my.unit, d[j]) : 0.f;
      stays_c[j] = STATES && valid ? zoned_out(a.extra.zone_c, t, row, my.unit, carry[j][0]) : 0.f;
      if (DROPS) d[j] -= stays[j];
      if (DROPS && STATES) carry[j][0] -= stays_c[j];
    }

    float d_c[R];
    if constexpr (HAS_SITE) UNROLL for (int j = 0; j < R; ++j) {
      d_c[j] = to_site(s[j], d[j], carry[j]) + (CARRY ? carry[j][0] : 0.f);
      if (!my.here || my.row(j) >= n) d_c[j] = 0.f;
      if (OUT != OFF) own_out[0] += d_c[j] * c_hat[j], own_out[1] += d_c[j];
    }
    if constexpr (OUT == OWN && OVER_UNITS) {
      UNROLL for (int j = 0; j < R; ++j) {
        d_c[j] *= gamma_out;
        const float sum = over_units(CENTRED && my.here ? d_c[j] : 0.f);
        const float2 part = make_float2(sum, over_units(my.here ? d_c[j] * c_hat[j] : 0.f));
        if (my.row(j) < n) leave_part(e, my, GROUPS, my.row(j), part);
      }
      gather_parts<false>(e, my, sums, barrier, 1, GROUPS, 1, n);
      UNROLL for (int j = 0; j < R; ++j) {
        const float* mean = sums.rows[1] + min(my.row(j), n - 1) * 2;
        d_c[j] = c_inverse[j] * (d_c[j] - mean[0] - c_hat[j] * mean[1]);
      }
    } else if constexpr (OUT == OWN) {
      float total[2] = {0.f, 0.f};
      UNROLL for (int j = 0; j < R; ++j) total[0] += d_c[j], total[1] += d_c[j] * c_hat[j];
      total_over_rows<2>(total, my, sums, 1);
      UNROLL for (int j = 0; j < R; ++j)
        d_c[j] = c_inverse[j] * gamma_out * (d_c[j] - total[0] / n - c_hat[j] * (total[1] / n));
    } else if constexpr (OUT == GIVEN) {
      UNROLL for (int j = 0; j < R; ++j) d_c[j] *= c_inverse[j] * gamma_out;
    }

    // the gradients of a second product's terms first, then, once that of what it multiplies is known, of all
    float d_x[R][GATES], d_y[R][GATES], d_operand[R];
    UNROLL for (int part = PRODUCTS - 1; part >= 0; --part) {
      UNROLL for (int j = 0; j < R; ++j) {
        const bool valid = my.here && my.row(j) < n;
        // an absent row has no gradients, times what may be infinite unless all is FINITE
        const bool counts = FINITE || valid;
        if (part > 0) {
          to_second(s[j], d[j], carry[j], d_y[j]);
          UNROLL for (int g = 0; g < GATES; ++g) d_y[j][g] = counts ? d_y[j][g] : 0.f;
          continue;
        }
        if (HAS_SITE) carry[j][0] = (CARRY ? 0.f : carry[j][0]) + (valid ? d_c[j] : 0.f);
        Gradients found;
        gradients(s[j], d[j], carry[j], PRODUCTS > 1 ? d_operand[j] : 0.f, found);
        UNROLL for (int g = 0; g < GATES; ++g)
          d_x[j][g] = counts ? found.x[g] : 0.f, d_y[j][g] = counts ? found.y[g] : 0.f;
        UNROLL for (int k = 0; k < SLOTS; ++k) own_weight[k] += WEIGHTS && counts ? found.weight[k] : 0.f;
        const bool goes_on = counts && !(valid && a.extra.anew(t, my.row(j)));
        UNROLL for (int k = 0; k < STATES; ++k) {
          if (DROPS && k == 0) found.before[k] += stays_c[j];
          carry[j][k] = goes_on ? found.before[k] : 0.f;
        }
        if (KEEPS_H) carry_h[j] = goes_on ? (SKIPS ? found.h : 0.f) + (DROPS ? stays[j] : 0.f) : 0.f;
        UNROLL for (int g = 0; g < GATES; ++g) own[g] += d_y[j][g] * hat[j][g], own[GATES + g] += d_y[j][g];
      }
      if constexpr (HIDDEN == OWN && OVER_UNITS) {
        UNROLL for (int j = 0; j < R; ++j)
          UNROLL for (int group = 0; group < GROUPS; ++group) {
            float sum = 0.f, sum_hat = 0.f;
            UNROLL for (int g = 0; g < GATES; ++g) if (group_of(g) == group) {
              if (CENTRED) sum += d_y[j][g] * gamma[g];
              sum_hat += d_y[j][g] * gamma[g] * hat[j][g];
            }
            const float2 means = make_float2(over_units(sum), over_units(sum_hat));
            if (my.row(j) < n) leave_part(e, my, group, my.row(j), means);
          }
        gather_parts<false>(e, my, sums, barrier, 0, 0, GROUPS, n);
        UNROLL for (int j = 0; j < R; ++j) UNROLL for (int g = 0; g < GATES; ++g) {
          const float* mean = sums.rows[0] + (min(my.row(j), n - 1) * GROUPS + group_of(g)) * 2;
          d_y[j][g] = inverse[j][g] * (d_y[j][g] * gamma[g] - mean[0] - hat[j][g] * mean[1]);
        }
      } else if constexpr (HIDDEN == OWN) {
        float total[2 * GATES];
        UNROLL for (int k = 0; k < 2 * GATES; ++k) total[k] = 0.f;
        UNROLL for (int j = 0; j < R; ++j) UNROLL for (int g = 0; g < GATES; ++g)
          total[g] += d_y[j][g], total[GATES + g] += d_y[j][g] * hat[j][g];
        total_over_rows<2 * GATES>(total, my, sums, 0);
        UNROLL for (int j = 0; j < R; ++j) UNROLL for (int g = 0; g < GATES; ++g)
          d_y[j][g] = inverse[j][g] * gamma[g] * (d_y[j][g] - total[g] / n - hat[j][g] * (total[GATES + g] / n));
      } else if constexpr (HIDDEN == GIVEN) {
        UNROLL for (int j = 0; j < R; ++j) UNROLL for (int g = 0; g < GATES; ++g) d_y[j][g] *= inverse[j][g] * gamma[g];
      }
      if (part > 0) {
        UNROLL for (int j = 0; j < R; ++j)
          if (my.here && my.row(j) < n) put_gates(e, (products + 1) & 1, part, my.unit, my.row(j), d_y[j]);
        barrier.arrive();
        product(e, barrier, copies, ++products & 1, weight, stages, n);
        const float poison = *sums.given_up ? __uint_as_float(0x7fffffffu) : 0.f;
        UNROLL for (int j = 0; j < R; ++j) {
          float sum[1] = {0.f};
          if (my.here && my.row(j) < n) entries<1>(e, stages, my.row(j), my.u, sum);
          d_operand[j] = sum[0] + poison;
        }
      }
    }

    if (t > a.first) {
      UNROLL for (int j = 0; j < R; ++j)
        if (my.here && my.row(j) < n) put_gates(e, (products + 1) & 1, 0, my.unit, my.row(j), d_y[j]);
      barrier.arrive();
    }
    UNROLL for (int j = 0; j < R; ++j) {
      const int row = my.row(j);
      if (!my.here || row >= n) continue;
      if (PRODUCTS > 1) narrow_to(a.operand[my.at(start + row)], second_operand(s[j]));
      UNROLL for (int g = 0; g < GATES; ++g) {
        narrow_to(a.d_z[my.at(start + row, g)], d_y[j][g]);
        narrow_to(a.d_x[my.at(start + row, g)], JOINT ? d_y[j][g] : d_x[j][g]);
      }
    }
    later = n;
  }

  UNROLL for (int j = 0; j < R; ++j) {
    if (!my.here || my.row(j) >= later) continue;
    UNROLL for (int k = 0; k < STATES; ++k) a.carry[k * rows + my.at(my.row(j))] = carry[j][k];
    if (KEEPS_H) a.carry_h[my.at(my.row(j))] = carry_h[j];
  }
  sync();
  total_over_rows<2 * GATES>(own, my, sums, 0);
  total_over_rows<2>(own_out, my, sums, 1);
  if (my.here && my.row(0) == 0) {
    UNROLL for (int g = 0; g < GATES; ++g) {
      const int at = g * a.units + my.unit;
      if (HIDDEN != OFF) a.d_gamma[at] += own[g];
      if (SHIFTED) a.d_shift[at] += own[GATES + g];
    }
    if (OUT != OFF) a.d_gamma_out[my.unit] += own_out[0], a.d_shift_out[my.unit] += own_out[1];
  }
  if constexpr (WEIGHTS > 0) {
    // a site's sums have room for two
    UNROLL for (int k = 0; k < SLOTS; k += 2) {
      float two[2] = {own_weight[k], k + 1 < SLOTS ? own_weight[min(k + 1, SLOTS - 1)] : 0.f};
      sync();
      total_over_rows<2>(two, my, sums, 0);
      if (!my.here || my.row(0) != 0) continue;
      a.d_weight[k * a.units + my.unit] += two[0];
      if (k + 1 < SLOTS) a.d_weight[(k + 1) * a.units + my.unit] += two[1];
    }
  }
}
