// products of bfloat16 by AMX, whose eight tiles have 16 rows of 64 bytes each
#pragma once
#include "factors.h"

#ifdef RNNORM_AMX
namespace rnnorm {
namespace {

constexpr int64_t amx_rows = 16;   // of a tile
constexpr int64_t amx_pairs = 16;  // of bfloat16 numbers in a row of one

#ifdef RNNORM_AMX_MODEL
// the instructions in plain C++, to test the code that uses them on any processor
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
inline thread_local int32_t amx_word[8][16][16];

void _tile_zero(int to) { std::memset(amx_word[to], 0, sizeof(amx_word[to])); }
void _tile_loadd(int to, const void* from, int64_t bytes) {
  for (int r = 0; r < 16; ++r)
    std::memcpy(amx_word[to][r], static_cast<const char*>(from) + r * bytes, 64);
}
void _tile_stored(int from, void* to, int64_t bytes) {
  for (int r = 0; r < 16; ++r)
    std::memcpy(static_cast<char*>(to) + r * bytes, amx_word[from][r], 64);
}
// sums (16, 16 floats) += a (16, 16 pairs) times b (16 pairs, 16)
void _tile_dpbf16ps(int sums, int a, int b) {
  for (int r = 0; r < 16; ++r) {
    Vec<float, 16> sum;
    std::memcpy(&sum, amx_word[sums][r], sizeof(sum));
    for (int k = 0; k < 16; ++k)
      sum = add_product<16>(sum, amx_word[a][r][k], load<16>(amx_word[b][k]));
    std::memcpy(amx_word[sums][r], &sum, sizeof(sum));
  }
}
struct AmxTiles {
  AmxTiles() {}
};
#else
// configures the tiles of this thread while it lives
struct AmxTiles {
  AmxTiles() {
    alignas(64) uint8_t palette[64] = {1};
    for (int tile = 0; tile < 8; ++tile) {
      palette[16 + 2 * tile] = 64;
      palette[48 + tile] = amx_rows;
    }
    _tile_loadconfig(palette);
  }
  ~AmxTiles() { _tile_release(); }
};
#endif

// c (16 Rows x 16 Columns) = or += rows of A, `a_stride` pairs apart, times `count` tiles of B, whose
// rows are `b_stride` pairs apart; Rows and Columns are 1 or 2. Tiles 0 to 3 hold the sums, row by
// row, 4 and 5 those of A, 6 and 7 those of B; compilers want literal numbers
template <int Rows, int Columns>
void amx_block(const int32_t* a, int64_t a_stride, const int32_t* b, int64_t b_stride,
               int64_t count, float* c, int64_t c_stride, bool accumulate) {
  const int64_t a_bytes = a_stride * 4, b_bytes = b_stride * 4, c_bytes = c_stride * 4;
  float* const below = c + amx_rows * c_stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    if (Columns > 1) _tile_loadd(1, c + 16, c_bytes);
    if (Rows > 1) _tile_loadd(2, below, c_bytes);
    if (Rows > 1 && Columns > 1) _tile_loadd(3, below + 16, c_bytes);
  }
  for (int64_t k = 0; k < count; ++k, a += amx_pairs, b += amx_pairs * b_stride) {
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (Columns > 1) _tile_loadd(7, b + 16, b_bytes);
    if (Columns > 1) _tile_dpbf16ps(1, 4, 7);
    if (Rows > 1) _tile_loadd(5, a + amx_rows * a_stride, a_bytes);
    if (Rows > 1) _tile_dpbf16ps(2, 5, 6);
    if (Rows > 1 && Columns > 1) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  if (Columns > 1) _tile_stored(1, c + 16, c_bytes);
  if (Rows > 1) _tile_stored(2, below, c_bytes);
  if (Rows > 1 && Columns > 1) _tile_stored(3, below + 16, c_bytes);
}

}  // namespace
}  // namespace rnnorm
#endif
