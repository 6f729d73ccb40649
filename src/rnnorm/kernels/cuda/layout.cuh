// How a block of threads is laid out, from the constants that a variant is compiled with.
//
// All steps of a sequence run in one launch, whose blocks are on the GPU at once. A block owns UNITS
// hidden units for all rows, and keeps their part of the recurrent weights in shared memory. At
// every step it multiplies the h (going back: the gradients of the recurrent terms) that all blocks
// wrote at the step before, computes its units, and writes its part of what the next step needs. With
// a second product blocks exchange its numbers, too, amid the step.
//
// Constants of a variant: BACKWARD, HIDDEN and OUT (scopes of the two sites), GROUPS of gates that
// share statistics over units (0: statistics are over rows), CENTRED (statistics have a mean), JOINT,
// CARRY (the next step reads the normalised state), SHIFTED, RESETS, DROPS (recurrent dropout),
// PRECISION, WIDE_X, BULK (copies that only newer GPUs have), UNITS, ROW_WARPS, STAGES.
// Those of the cell are with its equations: GATES in BLOCKS, FIRST_GATES (whose terms are of the first
// of two recurrent products; all if there is one), STATES beside h, WEIGHTS by unit in SLOTS, HAS_SITE
// (of a state), SKIPS (h is read beside the recurrent product), FINITE (no value is infinite where all
// that is read is 0).

template <bool CHOICE, class A, class B> struct Choose { typedef A type; };
template <class A, class B> struct Choose<false, A, B> { typedef B type; };

// statistics of a site: none, of the values themselves, given
enum Scope { OFF, OWN, GIVEN };

DEVICE constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
DEVICE constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// the warps that compute, and one more that copies for them where copies are of whole chunks
constexpr int WARPS = 16, WORKERS = 32 * WARPS, THREADS = WORKERS + 32 * BULK;
constexpr bool OVER_UNITS = GROUPS > 0;
DEVICE constexpr int group_of(int gate) {
  return GROUPS == GATES ? gate : GROUPS == BLOCKS ? block_of(gate) : 0;
}
DEVICE constexpr int gates_of(int group) {
  return GROUPS == GATES ? 1 : GROUPS == BLOCKS ? gates_of_block(group) : GATES;
}
// A step has a product of h and, with a second one, a product of what the cell makes of the first.
// Both are products of all weights, of which each uses some terms.
constexpr int PRODUCTS = FIRST_GATES < GATES ? 2 : 1;
DEVICE constexpr int product_of(int gate) { return gate < FIRST_GATES ? 0 : 1; }
// zoneout of h mixes in the h of the step before
constexpr bool KEEPS_H = SKIPS || DROPS;
// a number of the recurrent product, and how many stand in a piece of 16 bytes
typedef typename Choose<HALF, u16, float>::type Number;
typedef typename Choose<WIDE_X, float, Number>::type Term;
constexpr int PIECE = HALF ? 8 : 4;

// the product: ROW_WARPS warps share the rows, 16 each, the others the terms of each sum
constexpr int COLUMNS = BACKWARD ? UNITS : round_up(GATES * UNITS, 8), TILES = COLUMNS / 8;
constexpr int SPLIT = WARPS / ROW_WARPS, MOST_ROWS = 16 * ROW_WARPS;
// floats between rows of the finished tile, such that neighbours are in other banks
constexpr int PITCH = COLUMNS + 8 + (COLUMNS % 16 == 8 ? 8 : 0);

// afterwards a lane has one unit and every ROWS_AT_ONCE-th row
constexpr int LANES = power_of_two(UNITS), WARP_ROWS = 32 / LANES, ROWS_AT_ONCE = WARPS * WARP_ROWS;
constexpr int R = (MOST_ROWS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;

// shared memory: sums of every warp, of two sites; rows of every warp; statistics of rows
constexpr int SITE_SUMS = WARPS * UNITS * 2 * GATES, ALL_SUMS = SITE_SUMS + WARPS * UNITS * 2;
constexpr int ROW_SUMS = OVER_UNITS ? MOST_ROWS * 2 * (GROUPS + 1) : 0;
// then the barriers of the copies, two for each stage, and what is left of 128 bytes
constexpr int COPY_BARRIERS = round_up(4 * (ALL_SUMS + ROW_SUMS + WARPS + 4), 128);
constexpr int FIXED_BYTES = COPY_BARRIERS + 128;

// A site's scale, shift and matrices of statistics: `row` is that of the first step's first row,
// `skip` leads to the next step's and `pitch` to the next row's. Over units, going back, they have
// a row for each frame, and a column for each group of gates.
struct Site {
  const float *gamma, *shift;
  float *mean, *var;
  int row, skip, pitch, unused;
};

// A mask of recurrent dropout: the numbers drawn * scale; `step` and `row` lead to the next ones'.
struct Mask {
  const unsigned char* drawn;  // null where nothing is dropped
  i64 step;
  int row;
  float scale;
};

// What some layers have besides: rows that begin anew, weights by unit, recurrent dropout.
struct Extra {
  const unsigned char* reset;  // of each step and row of the call, 1 where the row begins anew
  const float* weight[3];      // null where there is none; the last has all others after it
  Mask hidden, candidate, zone_h, zone_c;
  int rows, unused;

  DEVICE bool anew(int t, int row) const { return RESETS && reset[(i64)t * rows + row]; }
};

// what both passes need to exchange numbers between blocks
struct Exchange {
  char* numbers;    // twice `pieces` times `stride` pieces of 16 bytes
  float2* partial;  // over units: of each site, group, row and block
  int* state;       // a counter of arrivals, zero at first
  int stride, pieces, chunk, unused;
};

DEVICE float widen(float x) { return x; }
DEVICE float widen(u16 x) { return PRECISION == FP16 ? from_fp16(x) : __uint_as_float((u32)x << 16); }
DEVICE void narrow_to(float& to, float x) { to = x; }
DEVICE void narrow_to(u16& to, float x) { to = PRECISION == FP16 ? to_fp16(x) : to_bf16(x); }
// the bits of a number in the product
DEVICE void operand(u16& to, float x) { narrow_to(to, x); }
DEVICE void operand(float& to, float x) { to = PRECISION == TF32 ? __uint_as_float(to_tf32(x)) : x; }
// x as the type of the terms holds it
DEVICE float rounded(float x) {
  Number bits;
  narrow_to(bits, x);
  return widen(bits);
}

// A value less its mean and over its deviation, and one over the deviation.
DEVICE float standardise(float value, float mean, float var, float eps, float& inverse) {
  inverse = rsqrtf(var + eps);
  return (value - mean) * inverse;
}

// Wait for the warps that compute.
DEVICE void sync() {
  if (BULK) sync_some<WORKERS>();
  else __syncthreads();
}

// One thread of a block.
struct Thread {
  int id, lane, warp, unit, u, units;
  bool here;  // whether its unit exists

  DEVICE explicit Thread(int units)
      : id(threadIdx.x), lane(id & 31), warp(id >> 5), unit(blockIdx.x * UNITS + lane % LANES),
        u(lane % LANES), units(units), here(u < UNITS && unit < units) {}
  DEVICE int row(int j) const { return (j * WARPS + warp) * WARP_ROWS + lane / LANES; }
  DEVICE i64 at(i64 frame) const { return frame * units + unit; }
  DEVICE i64 at(i64 frame, int gate) const { return (frame * GATES + gate) * units + unit; }
};

// A mask's number for a unit, or `otherwise` without a mask.
DEVICE float drawn(const Mask& mask, int t, int row, int unit, float otherwise) {
  if (!DROPS || !mask.drawn) return otherwise;
  return mask.drawn[t * mask.step + (i64)row * mask.row + unit] * mask.scale;
}

// A state of which zoneout leaves a part as it was before the step.
DEVICE float zone_out(const Mask& mask, int t, int row, int unit, float before, float fresh) {
  if (!DROPS || !mask.drawn) return fresh;
  const float kept = drawn(mask, t, row, unit, 0.f), apart = before - fresh;
  return kept < .5f ? fresh + kept * apart : before - (1.f - kept) * apart;
}
// The part of a state's gradient that zoneout leaves to the step before.
DEVICE float zoned_out(const Mask& mask, int t, int row, int unit, float d) {
  return !DROPS || !mask.drawn ? 0.f : d * drawn(mask, t, row, unit, 0.f);
}

// A unit's weights: 0 where there are none.
DEVICE void load_weights(const Extra& extra, const Thread& my, float (&weight)[SLOTS]) {
  UNROLL for (int k = 0; k < SLOTS; ++k) {
    const int which = min(k, 2);
    const float* const first = WEIGHTS && my.here ? extra.weight[which] : nullptr;
    weight[k] = first ? first[(k - which) * my.units + my.unit] : 0.f;
  }
}

// A unit's scales and shifts of both sites: 1 and 0 where there are none.
DEVICE void load_scales(const Site& hidden, const Site& out, const Thread& my, float (&gamma)[GATES],
                        float (&shift)[GATES], float& gamma_out, float& shift_out) {
  UNROLL for (int g = 0; g < GATES; ++g) {
    gamma[g] = HIDDEN != OFF && my.here ? hidden.gamma[my.at(0, g)] : 1.f;
    shift[g] = SHIFTED && my.here ? hidden.shift[my.at(0, g)] : 0.f;
  }
  gamma_out = OUT != OFF && my.here ? out.gamma[my.unit] : 1.f;
  shift_out = OUT != OFF && my.here ? out.shift[my.unit] : 0.f;
}
