// how a layer's sums are formed and kept
#pragma once
#include <initializer_list>

#include "layer.h"

namespace rnnorm {
namespace {

struct Plan {
  bool fused;      // W_x x + W_h h in one array, with one gradient: nothing needs them apart
  bool recompute;  // compute W_x x again in backward: cheaper than to keep it
  bool whole;      // one statistic of W_x x over all frames
  bool ahead;      // statistics of W_x x at all steps are taken before the first step
  bool across;     // a thread goes over its tiles several times a step, with barriers in between: for
                   // statistics by row or of several processes, or a second product
  bool extra;      // the cell's equations have peepholes, recurrent dropout or a normalised carry
  bool masked;     // the recurrent product reads a masked h
  int64_t frames;  // sum of sizes
  int64_t all_frames;  // sum of sizes over all processes

  // `separate` and `two_products` are the cell's, from the cells.h that csrc/generate.py writes
  Plan(const rnnorm_layer& a, bool separate, bool two_products) {
    const bool apart = a.site[RNNORM_INPUT].scope || separate ||
                       (a.site[RNNORM_HIDDEN].scope && !a.joint);
    fused = !apart;
    whole = a.site[RNNORM_INPUT].scope == RNNORM_SEQUENCE;
    ahead = whole || (a.exchange && a.site[RNNORM_INPUT].scope == RNNORM_FRAME);
    recompute = a.recompute && !fused && !ahead;
    across = a.exchange != nullptr || two_products;
    for (const rnnorm_site& site : a.site) across |= site.scope >= RNNORM_ROW;
    extra = a.carry;
    for (const void* weight : a.peephole) extra |= weight != nullptr;
    for (int place : {RNNORM_CANDIDATE, RNNORM_ZONE_H, RNNORM_ZONE_C})
      extra |= a.mask[place].drawn != nullptr;
    masked = a.mask[RNNORM_SEEN].drawn != nullptr;
    frames = all_frames = 0;
    for (int64_t t = 0; t < a.T; ++t) {
      frames += a.sizes[t];
      all_frames += (a.exchange ? a.all_sizes : a.sizes)[t];
    }
  }
};

}  // namespace
}  // namespace rnnorm
