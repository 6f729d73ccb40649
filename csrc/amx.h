// products of bfloat16 by AMX, whose eight tiles have at most 16 rows of 64 bytes each
#pragma once
#include <atomic>

#include "factors.h"

#ifdef RNNORM_AMX
namespace rnnorm {
namespace {

constexpr bool amx = true;
constexpr int64_t amx_rows = 16;   // of a tile at most
constexpr int64_t amx_pairs = 16;  // of bfloat16 numbers in a row of one at most

// the tiles of a thread: 0 and 1 hold sums of the upper rows, 2 and 3 of the lower ones, 4 and 5 the
// upper and lower rows of A, each with some pairs, and 6 and 7 as many rows of B
struct AmxShape {
  int64_t upper, lower, pairs;
  bool operator==(const AmxShape& other) const {
    return upper == other.upper && lower == other.lower && pairs == other.pairs;
  }
  int64_t rows(int tile) const {
    return tile >= 6 ? pairs : tile == 2 || tile == 3 || tile == 5 ? lower : upper;
  }
  int64_t bytes(int tile) const {
    return rows(tile) == 0 ? 0 : tile == 4 || tile == 5 ? 4 * pairs : 64;
  }
};
inline thread_local AmxShape amx_shape{};

#ifdef RNNORM_AMX_MODEL
// the instructions in plain C++, to test the code that uses them on any processor
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
inline thread_local int32_t amx_word[8][16][16];

void _tile_loadconfig(const void*) {}
void _tile_release() {}
void _tile_zero(int to) { std::memset(amx_word[to], 0, sizeof(amx_word[to])); }
void _tile_loadd(int to, const void* from, int64_t apart) {
  const size_t bytes = size_t(amx_shape.bytes(to));
  for (int64_t r = 0; r < amx_shape.rows(to); ++r)
    std::memcpy(amx_word[to][r], static_cast<const char*>(from) + r * apart, bytes);
}
void _tile_stored(int from, void* to, int64_t apart) {
  const size_t bytes = size_t(amx_shape.bytes(from));
  for (int64_t r = 0; r < amx_shape.rows(from); ++r)
    std::memcpy(static_cast<char*>(to) + r * apart, amx_word[from][r], bytes);
}
// sums (rows, 16 floats) += a (rows, pairs) times b (pairs, 16)
void _tile_dpbf16ps(int sums, int a, int b) {
  for (int64_t r = 0; r < amx_shape.rows(a); ++r) {
    Vec<float, 16> sum;
    std::memcpy(&sum, amx_word[sums][r], sizeof(sum));
    for (int64_t k = 0; k < amx_shape.pairs; ++k)
      sum = add_product<16>(sum, amx_word[a][r][k], load<16>(amx_word[b][k]));
    std::memcpy(amx_word[sums][r], &sum, sizeof(sum));
  }
}
#endif

// GCC does not know that these instructions read memory, and could store later
void finish_stores() { std::atomic_signal_fence(std::memory_order_seq_cst); }

void shape_tiles(const AmxShape& shape) {
  if (shape == amx_shape) return;
  alignas(64) uint8_t palette[64] = {1};
  for (int tile = 0; tile < 8; ++tile) {
    palette[16 + 2 * tile] = uint8_t(shape.bytes(tile));
    palette[48 + tile] = uint8_t(shape.rows(tile));
  }
  finish_stores();
  _tile_loadconfig(palette);
  amx_shape = shape;
}
// releases this thread's tiles before code of others runs, which may shape them as well
void release_tiles() {
  _tile_release();
  amx_shape = {};
}

// c (rows x 16 Columns) = or += rows of A times B, whose rows are `b_stride` pairs apart, with tiles
// of the shape in use. There are lower rows if Rows is 2. Compilers want literal numbers of tiles
template <int Rows, int Columns>
void amx_block(const RowsOf<float>& a, const int32_t* b, int64_t b_stride, float* c,
               int64_t c_stride, bool accumulate) {
  const int64_t pairs = amx_shape.pairs;
  const int64_t a_bytes = a.stride * 4, b_bytes = b_stride * 4, c_bytes = c_stride * 4;
  float* const below = c + amx_rows * c_stride;
  finish_stores();
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    if (Columns > 1) _tile_loadd(1, c + 16, c_bytes);
    if (Rows > 1) _tile_loadd(2, below, c_bytes);
    if (Rows > 1 && Columns > 1) _tile_loadd(3, below + 16, c_bytes);
  } else {
    _tile_zero(0);
    if (Columns > 1) _tile_zero(1);
    if (Rows > 1) _tile_zero(2);
    if (Rows > 1 && Columns > 1) _tile_zero(3);
  }
  for (int64_t s = 0; s < a.segments; ++s) {
    const int32_t* row = a.data + s * a.jump;
    for (int64_t k = 0; k < a.length; k += pairs, row += pairs, b += pairs * b_stride) {
      _tile_loadd(4, row, a_bytes);
      _tile_loadd(6, b, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      if (Columns > 1) _tile_loadd(7, b + 16, b_bytes);
      if (Columns > 1) _tile_dpbf16ps(1, 4, 7);
      if (Rows > 1) _tile_loadd(5, row + amx_rows * a.stride, a_bytes);
      if (Rows > 1) _tile_dpbf16ps(2, 5, 6);
      if (Rows > 1 && Columns > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_bytes);
  if (Columns > 1) _tile_stored(1, c + 16, c_bytes);
  if (Rows > 1) _tile_stored(2, below, c_bytes);
  if (Rows > 1 && Columns > 1) _tile_stored(3, below + 16, c_bytes);
}

// c (n x Columns), rows `c_stride` apart, = or += n rows of A times a panel: slices of S columns, each
// of which lies in one piece; false if tiles cannot hold them
template <int Columns, int S>
bool amx_product(RowsOf<float> a, int64_t n, const int32_t* panel, float* c, int64_t c_stride,
                 bool accumulate) {
  if (S % 16 || a.step != 1) return false;
  const int64_t length = a.segments * a.length;
  int64_t pairs = amx_pairs;
  while (a.length % pairs) --pairs;
  for (int64_t r = 0; r < n; r += 2 * amx_rows, a.data += 2 * amx_rows * a.stride) {
    const int64_t rows = n - r < 2 * amx_rows ? n - r : 2 * amx_rows;
    const int64_t upper = rows < amx_rows ? rows : amx_rows;
    shape_tiles({upper, rows - upper, pairs});
    float* to = c + r * c_stride;
    for (int slice = 0; slice < Columns; slice += S, to += S) {
      const int32_t* by = panel + slice * length;
      int column = 0;
      for (; column + 32 <= S; column += 32)
        if (rows > amx_rows)
          amx_block<2, 2>(a, by + column, S, to + column, c_stride, accumulate);
        else
          amx_block<1, 2>(a, by + column, S, to + column, c_stride, accumulate);
      if (column == S) continue;
      if (rows > amx_rows)
        amx_block<2, 1>(a, by + column, S, to + column, c_stride, accumulate);
      else
        amx_block<1, 1>(a, by + column, S, to + column, c_stride, accumulate);
    }
  }
  return true;
}

}  // namespace
}  // namespace rnnorm
#else
namespace rnnorm {
namespace {

constexpr bool amx = false;
RNNORM_INLINE void release_tiles() {}

}  // namespace
}  // namespace rnnorm
#endif
