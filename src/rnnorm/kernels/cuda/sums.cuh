// Sums over the rows of a step, which are all in one block, and over units, which are in all blocks.

// Add up over the lanes that have the same unit, or the same row.
DEVICE float over_rows(float x) {
  UNROLL for (int lanes = LANES; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}
DEVICE float over_units(float x) {
  UNROLL for (int lanes = 1; lanes < LANES; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}
DEVICE float over_warp(float x) {
  UNROLL for (int lanes = 1; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

// The number of a step's n rows that a warp has.
DEVICE int rows_of_warp(int warp, int n) {
  int rows = 0;
  UNROLL for (int j = 0; j < R; ++j) rows += max(0, min(WARP_ROWS, n - (j * WARPS + warp) * WARP_ROWS));
  return rows;
}

// The shared memory of sums.
struct Sums {
  float *site[2], *rows[2], *counts;
  int* given_up;

  DEVICE explicit Sums(char* space) {
    site[0] = (float*)space;
    site[1] = site[0] + SITE_SUMS;
    rows[0] = site[0] + ALL_SUMS;
    rows[1] = rows[0] + (OVER_UNITS ? MOST_ROWS * 2 * GROUPS : 0);
    counts = rows[0] + ROW_SUMS;
    given_up = (int*)(counts + WARPS);
  }
};

// Mean and biased variance of each of COUNT values of a unit over the n rows of a step: those of
// each warp in two passes, merged without cancellation.
template <int COUNT>
DEVICE void moments_over_rows(const float (&values)[R][COUNT], const Thread& my, const Sums& sums, int site,
                              int n, float (&mean)[COUNT], float (&var)[COUNT]) {
  constexpr int ALL = UNITS * COUNT;
  float* parts = sums.site[site];
  const float few = 1.f / max(rows_of_warp(my.warp, n), 1);
  UNROLL for (int k = 0; k < COUNT; ++k) {
    float sum = 0.f;
    UNROLL for (int j = 0; j < R; ++j) if (my.here && my.row(j) < n) sum += values[j][k];
    mean[k] = over_rows(sum) * few;
    sum = 0.f;
    UNROLL for (int j = 0; j < R; ++j) if (my.here && my.row(j) < n) {
      const float d = values[j][k] - mean[k];
      sum += d * d;
    }
    var[k] = over_rows(sum);
  }
  if (my.lane < UNITS) UNROLL for (int k = 0; k < COUNT; ++k) {
    parts[my.warp * 2 * ALL + my.u * COUNT + k] = mean[k];
    parts[my.warp * 2 * ALL + ALL + my.u * COUNT + k] = var[k];
  }
  if (my.id < WARPS) sums.counts[my.id] = rows_of_warp(my.id, n);
  sync();
  // a thread merges one value, and leaves it in the place of the first warp's
  if (my.id < ALL) {
    float means[WARPS], total = 0.f, squares = 0.f;
    UNROLL for (int w = 0; w < WARPS; ++w) {
      means[w] = parts[w * 2 * ALL + my.id];
      total += sums.counts[w] * means[w];
      squares += parts[w * 2 * ALL + ALL + my.id];
    }
    total /= n;
    UNROLL for (int w = 0; w < WARPS; ++w) {
      const float d = means[w] - total;
      squares += sums.counts[w] * d * d;
    }
    parts[my.id] = total, parts[ALL + my.id] = squares / n;
  }
  sync();
  const int u = min(my.u, UNITS - 1);
  UNROLL for (int k = 0; k < COUNT; ++k) mean[k] = parts[u * COUNT + k], var[k] = parts[ALL + u * COUNT + k];
}

// The sums of COUNT values of each unit over all rows, from what each thread has.
template <int COUNT>
DEVICE void total_over_rows(float (&values)[COUNT], const Thread& my, const Sums& sums, int site) {
  constexpr int ALL = UNITS * COUNT;
  float* parts = sums.site[site];
  UNROLL for (int k = 0; k < COUNT; ++k) values[k] = over_rows(values[k]);
  if (my.lane < UNITS) UNROLL for (int k = 0; k < COUNT; ++k)
    parts[my.warp * ALL + my.u * COUNT + k] = values[k];
  sync();
  if (my.id < ALL) {
    float total = 0.f;
    UNROLL for (int w = 0; w < WARPS; ++w) total += parts[w * ALL + my.id];
    parts[my.id] = total;
  }
  sync();
  const int u = min(my.u, UNITS - 1);
  UNROLL for (int k = 0; k < COUNT; ++k) values[k] = parts[u * COUNT + k];
}

// Leave a row's part of a statistic over units to all blocks: two numbers.
DEVICE void leave_part(const Exchange& e, const Thread& my, int slot, int row, float2 part) {
  if (my.u == 0) e.partial[((i64)slot * e.stride + row) * gridDim.x + blockIdx.x] = part;
}

// Once all blocks have left their parts, gather them for n rows into `sums.rows[site]`: mean and
// biased variance of MOMENTS, else two means. Slots `first` to `first + count` are the site's groups.
template <bool MOMENTS>
DEVICE void gather_parts(const Exchange& e, const Thread& my, const Sums& sums, Barrier& barrier, int site,
                         int first, int count, int n) {
  barrier.arrive();
  barrier.wait();
  // where the wait was given up, the sums are NaN
  const float poison = *sums.given_up ? __uint_as_float(0x7fffffffu) : 0.f;
  // there are at most 160 blocks; so many rows are on their way at once
  constexpr int EACH = 5, AT_ONCE = 4;
  for (int group = 0; group < count; ++group) {
    const int gates = site ? 1 : gates_of(group);
    const float2* from = e.partial + (i64)(first + group) * e.stride * gridDim.x;
    for (int top = my.warp; top < n; top += AT_ONCE * WARPS) {
      float2 part[AT_ONCE][EACH];
      UNROLL for (int r = 0; r < AT_ONCE; ++r) UNROLL for (int i = 0; i < EACH; ++i) {
        const int row = top + r * WARPS, block = i * 32 + my.lane;
        part[r][i] = make_float2(0.f, 0.f);
        if (row < n && block < (int)gridDim.x) part[r][i] = load_fresh(from + (i64)row * gridDim.x + block);
      }
      UNROLL for (int r = 0; r < AT_ONCE; ++r) {
        const int row = top + r * WARPS;
        float a = 0.f, b = 0.f;
        UNROLL for (int i = 0; i < EACH; ++i) {
          const int numbers = gates * max(0, min(UNITS, my.units - (i * 32 + my.lane) * UNITS));
          a += MOMENTS ? numbers * part[r][i].x : part[r][i].x;
          b += part[r][i].y;
        }
        a = over_warp(a) / (gates * my.units);
        if constexpr (MOMENTS) UNROLL for (int i = 0; i < EACH; ++i) {
          const float d = part[r][i].x - a;
          b += gates * max(0, min(UNITS, my.units - (i * 32 + my.lane) * UNITS)) * d * d;
        }
        b = over_warp(b) / (gates * my.units);
        if (my.lane == 0 && row < n) {
          sums.rows[site][(row * count + group) * 2] = a + poison;
          sums.rows[site][(row * count + group) * 2 + 1] = b;
        }
      }
    }
  }
  sync();
}

// Leave the mean, 0 if it is not CENTRED, and the sum of squares about it of a row's values in this
// block, for each group.
template <int COUNT>
DEVICE void leave_moments(const Exchange& e, const Thread& my, int slot, int row, bool valid,
                          const float (&values)[COUNT]) {
  const int units = max(1, min(UNITS, my.units - (int)blockIdx.x * UNITS));
  UNROLL for (int group = 0; group < (COUNT > 1 ? GROUPS : 1); ++group) {
    float sum = 0.f, squares = 0.f;
    UNROLL for (int k = 0; k < COUNT; ++k) if (my.here && (COUNT == 1 || group_of(k) == group)) sum += values[k];
    const float mean = CENTRED ? over_units(sum) / (units * (COUNT > 1 ? gates_of(group) : 1)) : 0.f;
    UNROLL for (int k = 0; k < COUNT; ++k) if (my.here && (COUNT == 1 || group_of(k) == group)) {
      const float d = values[k] - mean;
      squares += d * d;
    }
    squares = over_units(squares);
    if (valid) leave_part(e, my, slot + group, row, make_float2(mean, squares));
  }
}
