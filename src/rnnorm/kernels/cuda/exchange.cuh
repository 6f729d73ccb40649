// What blocks tell one another: the numbers of the next product, and sums over units.

// how often a block arrives from one product to the next: with its sums over units of each site, and
// with its numbers of the next product
constexpr int ARRIVALS = 1 + (OVER_UNITS ? (HIDDEN == OWN) + (OUT == OWN) : 0);

// A counter that all blocks add to and wait for.
struct Barrier {
  int *state, arrivals;
  int* given_up;  // in shared memory

  DEVICE Barrier(int* state, int* given_up) : state(state), arrivals(0), given_up(given_up) {
    if (threadIdx.x == 0) *given_up = 0;
  }
  // what this block wrote is seen by whoever waits
  DEVICE void arrive() {
    fence_copies();
    sync();
    ++arrivals;
    if (threadIdx.x == 0) add_release(state, 1);
  }
  // for one thread: a wait of about a second is given up, and the results are then NaN
  DEVICE void wait_alone(int arrivals) {
    if (*given_up) return;
    const i64 from = clock64();
    while (load_acquire(state) < arrivals * (int)gridDim.x)
      if (clock64() - from > 2000000000ll) {
        *given_up = 1;
        break;
      }
  }
  DEVICE void wait() {
    if (threadIdx.x == 0) wait_alone(arrivals);
    sync();
  }
};

// The rows of a product of n rows: whole tiles, and one at least, as no copy may be empty.
DEVICE int rows_copied(int n) { return (max(n, 1) + 15) / 16 * 16; }

// Put a number where the next product reads it: k counts the terms of its sums.
DEVICE void put(const Exchange& e, int buffer, int k, int row, float x) {
  char* piece = e.numbers + ((i64)(buffer * e.pieces + k / PIECE) * e.stride + row) * 16;
  operand(((Number*)piece)[k % PIECE], x);
}

// Keep this block's part of the recurrent weights in shared memory, in pieces of 16 bytes of a
// column. Forward: W of (GATES units, units), a column is a unit's gate. Back: a column is a unit of
// h, and term k of its sum belongs to gate k % GATES of unit k / GATES.
DEVICE void load_weight(const Number* weight, char* to, int units, int pieces) {
  Number* numbers = (Number*)to;
  const int first = blockIdx.x * UNITS, terms = BACKWARD ? GATES * units : units;
  for (int i = threadIdx.x; i < pieces * PIECE * COLUMNS; i += THREADS) {
    // neighbouring threads read neighbouring numbers
    const int column = BACKWARD ? i % COLUMNS : i / PIECE % COLUMNS;
    const int k = BACKWARD ? i / COLUMNS : i / PIECE / COLUMNS * PIECE + i % PIECE;
    const int own = BACKWARD ? first + column : first + column / GATES;
    float w = 0.f;
    if (k < terms && own < units && (BACKWARD || column < GATES * UNITS)) {
      const int row = BACKWARD ? k % GATES * units + k / GATES : column % GATES * units + own;
      w = widen(weight[(i64)row * units + (BACKWARD ? own : k)]);
    }
    operand(numbers[(k / PIECE * COLUMNS + column) * PIECE + k % PIECE], w);
  }
}

#if BULK
// Chunks on their way into shared memory: each stage has a barrier that says it is full, and one
// that says all warps are done with it. The warp that copies and those that compute count alike.
struct Copies {
  u32 full, to;
  int done;  // chunks of earlier products

  DEVICE Copies(char* space, char* stages)
      : full(shared_address(space + COPY_BARRIERS)), to(shared_address(stages)), done(0) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty(i), WARPS);
    fence_barriers();
  }
  DEVICE u32 empty(int stage) const { return full + 8 * (STAGES + stage); }
  // start the copy of a chunk of `rows` rows
  DEVICE void start(const Exchange& e, const char* numbers, int chunk, int rows) {
    const int stage = (done + chunk) % STAGES;
    const char* from = numbers + (i64)chunk * e.chunk * e.stride * 16;
    const u32 at = to + stage * e.chunk * e.stride * 16;
    barrier_expect(full + 8 * stage, e.chunk * rows * 16);
    if (rows == e.stride) return copy_bulk(at, from, e.chunk * rows * 16, full + 8 * stage);
    for (int piece = 0; piece < e.chunk; ++piece)
      copy_bulk(at + piece * e.stride * 16, from + piece * e.stride * 16, rows * 16, full + 8 * stage);
  }
  DEVICE static void wait(u32 barrier, int use) {
    while (!barrier_passed(barrier, use & 1)) {}
  }
  // once all blocks have arrived so often, copy what a product of n rows needs
  DEVICE void run(const Exchange& e, Barrier& barrier, int arrivals, int buffer, int n) {
    barrier.wait_alone(arrivals);
    fence_copies();
    const char* numbers = e.numbers + (i64)buffer * e.pieces * e.stride * 16;
    const int chunks = e.pieces / e.chunk, rows = rows_copied(n);
    for (int i = 0; i < chunks; ++i) {
      const int before = done + i - STAGES;
      if (before >= 0) wait(empty(before % STAGES), before / STAGES);
      start(e, numbers, i, rows);
    }
    done += chunks;
  }
};
#else
// Copy a chunk of the numbers of `rows` rows into shared memory.
DEVICE void copy_chunk(const Exchange& e, const char* numbers, int chunk, u32 to, int rows) {
  const char* from = numbers + (i64)chunk * e.chunk * e.stride * 16;
  if (rows == e.stride) {
    for (int i = threadIdx.x; i < e.chunk * rows; i += THREADS) copy_async(to + i * 16, from + i * 16);
    return;
  }
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int piece = warp; piece < e.chunk; piece += WARPS)
    for (int row = lane; row < rows; row += 32) {
      const int at = (piece * e.stride + row) * 16;
      copy_async(to + at, from + at);
    }
}
struct Copies {
  DEVICE Copies(char*, char*) {}
};
#endif

DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if constexpr (PRECISION == BF16) multiply_bf16(sums, a, b);
  else if constexpr (PRECISION == FP16) multiply_fp16(sums, a, b);
  else multiply_tf32(sums, a, b);
}

// Split numbers into their leading digits and the rest, both as TF32 has them.
template <int N>
DEVICE void split(u32 (&high)[N], u32 (&low)[N]) {
  UNROLL for (int i = 0; i < N; ++i) {
    const float x = __uint_as_float(high[i]);
    high[i] = to_tf32(x);
    low[i] = to_tf32(x - __uint_as_float(high[i]));
  }
}

// Add the products of a chunk to a warp's sums.
DEVICE void multiply_chunk(float (&sums)[TILES][4], const Exchange& e, u32 numbers,
                           u32 weight, int rows) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int first = warp % ROW_WARPS * 16;
  if (first >= rows) return;
  numbers += ((lane >> 4) * e.stride + first + (lane & 15)) * 16;
  const u32 pair = weight + ((lane >> 3 & 1) * COLUMNS + (lane >> 4) * 8 + (lane & 7)) * 16;
  const u32 one = weight + ((lane >> 3 & 1) * COLUMNS + (lane & 7)) * 16;
#pragma unroll 2
  for (int k = warp / ROW_WARPS; k < e.chunk / 2; k += SPLIT) {
    u32 b[TILES][2], b_low[TILES][2];
    UNROLL for (int q = 0; q + 1 < TILES; q += 2) {
      u32 both[4];
      load_matrices(both, pair + (2 * k * COLUMNS + q * 8) * 16);
      b[q][0] = both[0], b[q][1] = both[1], b[q + 1][0] = both[2], b[q + 1][1] = both[3];
    }
    if constexpr (TILES % 2) load_matrices(b[TILES - 1], one + (2 * k * COLUMNS + (TILES - 1) * 8) * 16);
    if constexpr (PRECISION == FP32) UNROLL for (int q = 0; q < TILES; ++q) split(b[q], b_low[q]);
    u32 a[4], a_low[4];
    load_matrices(a, numbers + 2 * k * e.stride * 16);
    if constexpr (PRECISION == FP32) split(a, a_low);
    UNROLL for (int q = 0; q < TILES; ++q) {
      if constexpr (PRECISION == FP32) {
        // tensor cores do not round what they add to
        float few[4] = {0.f, 0.f, 0.f, 0.f};
        multiply(few, a_low, b[q]);
        multiply(few, a, b_low[q]);
        multiply(few, a, b[q]);
        UNROLL for (int i = 0; i < 4; ++i) sums[q][i] += few[i];
      } else {
        multiply(sums[q], a, b[q]);
      }
    }
  }
}

// Once all blocks have arrived, multiply the numbers that they put into a buffer with this block's
// weights. The SPLIT parts of each sum are in `tile`, over the copies.
DEVICE void product(const Exchange& e, Barrier& barrier, Copies& copies, int buffer, const char* weight,
                    char* stages, int n) {
  float sums[TILES][4];
  UNROLL for (int q = 0; q < TILES; ++q)
    UNROLL for (int i = 0; i < 4; ++i) sums[q][i] = 0.f;
  const int chunks = e.pieces / e.chunk, rows = rows_copied(n), bytes = e.chunk * e.stride * 16;
  const u32 to = shared_address(stages), own = shared_address(weight);
#if BULK
  for (int i = 0; i < chunks; ++i) {
    const int stage = (copies.done + i) % STAGES;
    copies.wait(copies.full + 8 * stage, (copies.done + i) / STAGES);
    multiply_chunk(sums, e, to + stage * bytes, own + i * e.chunk * COLUMNS * 16, rows);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(copies.empty(stage));
  }
  copies.done += chunks;
#else
  const char* numbers = e.numbers + (i64)buffer * e.pieces * e.stride * 16;
  barrier.wait();
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < chunks) copy_chunk(e, numbers, i, to + i * bytes, rows);
    end_copy_group();
  }
  for (int i = 0; i < chunks; ++i) {
    wait_for_copies<STAGES - 2>();
    sync();
    const int next = i + STAGES - 1;
    if (next < chunks) copy_chunk(e, numbers, next, to + next % STAGES * bytes, rows);
    end_copy_group();
    multiply_chunk(sums, e, to + i % STAGES * bytes, own + i * e.chunk * COLUMNS * 16, rows);
  }
  wait_for_copies<0>();
#endif
  sync();
  float* tile = (float*)stages;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int first = warp % ROW_WARPS * 16, part = warp / ROW_WARPS;
  if (first < rows) {
    UNROLL for (int q = 0; q < TILES; ++q) {
      float* at = tile + (part * e.stride + first + (lane >> 2)) * PITCH + q * 8 + (lane & 3) * 2;
      *(float2*)at = make_float2(sums[q][0], sums[q][1]);
      *(float2*)(at + 8 * PITCH) = make_float2(sums[q][2], sums[q][3]);
    }
  }
  sync();
}

// The entries of the product that belong to a row and unit: each the sum of its parts.
template <int COUNT>
DEVICE void entries(const Exchange& e, const char* stages, int row, int u, float (&values)[COUNT]) {
  const float* at = (const float*)stages + row * PITCH + u * COUNT;
  UNROLL for (int k = 0; k < COUNT; ++k) values[k] = 0.f;
  UNROLL for (int part = 0; part < SPLIT; ++part, at += e.stride * PITCH) {
    if constexpr (COUNT == 4) {
      const float4 four = *(const float4*)at;
      values[0] += four.x, values[1] += four.y, values[2] += four.z, values[3] += four.w;
    } else {
      UNROLL for (int k = 0; k < COUNT; ++k) values[k] += at[k];
    }
  }
}
