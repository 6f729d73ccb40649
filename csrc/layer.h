// the C ABI: one layer in one direction over a whole sequence
#pragma once
#include <cstdint>

#ifdef _WIN32
#define RNNORM_API __declspec(dllexport)
#else
#define RNNORM_API __attribute__((visibility("default")))
#endif

namespace rnnorm {
class Team;
}

extern "C" {

enum {
  RNNORM_LSTM,
  RNNORM_GRU,
  RNNORM_GRU_BOTH,  // the reset gate multiplies both terms of the candidate
  RNNORM_LIGRU,
  RNNORM_RNN_TANH,
  RNNORM_RNN_RELU,
  RNNORM_INDRNN_TANH,  // weight_hh is (H,): W_h h is weight_hh * h
  RNNORM_INDRNN_RELU
};
// the type of a layer's numbers; with RNNORM_BFLOAT16 x, the matrices W and the gradients of these
// are bfloat16, and all other numbers are float
enum { RNNORM_FLOAT, RNNORM_DOUBLE, RNNORM_BFLOAT16 };
// ROW and RMS are of each row: layer norm, and RMS norm, which subtracts no mean
enum { RNNORM_OFF, RNNORM_FRAME, RNNORM_SEQUENCE, RNNORM_ROW, RNNORM_RMS };
// the gates of a term that share the statistics of a row. BLOCKS: all, but in a GRU its two gates
// apart from its candidate; TERM: all; GATE: each by itself
enum { RNNORM_OVER_BLOCKS, RNNORM_OVER_TERM, RNNORM_OVER_GATE };
enum { RNNORM_INPUT, RNNORM_HIDDEN, RNNORM_CELL, RNNORM_SITES };
// as PLACES in kernels/inputs.py
enum { RNNORM_SEEN, RNNORM_CANDIDATE, RNNORM_ZONE_H, RNNORM_ZONE_C, RNNORM_MASKS };
enum { RNNORM_PEEPHOLE_I, RNNORM_PEEPHOLE_F, RNNORM_PEEPHOLE_O, RNNORM_PEEPHOLES };

// one normalised site; every array has the features of torch's gate order
struct rnnorm_site {
  int64_t scope;
  int64_t over;  // of a norm by row
  double eps;
  const void* gamma;
  const void* beta;           // cell alone
  const void* constant_mean;  // statistics used at steps without one of their own
  const void* constant_var;
  int64_t constant_last;  // the last step with constants of its own, which all later ones share
  int64_t constant_step;  // elements from one step's constants to the next
  int64_t constant_row;   // and from one row's to the next, 0 where rows share them
  // statistics taken, (T, features) or (1, features). A norm by row stores the mean and, as var, one
  // over the standard deviation, (blocks of gates, active frames); null if no backward pass follows
  void* mean;
  void* var;
  // for exchange: two numbers for each feature and statistic, (T, 2, features) or (1, 2, features)
  void* sums;
  void* grad_gamma;
  void* grad_beta;
};

// recurrent dropout at one place: the h that the recurrent product reads and the candidate are
// multiplied by drawn * scale; for a state with zoneout this is the part that keeps its old value
struct rnnorm_mask {
  const uint8_t* drawn;  // 0 or 1 for each unit, null where nothing is dropped
  int64_t step;          // elements from one step's to the next, 0 where all share them
  int64_t row;           // and from one row's to the next
  double scale;
};

// merges a site's statistics [first, first + count) over all processes; returns 0 on success. The
// thread that has called the pass calls it, while the others wait. In forward `mean` and, in
// `var`, the sum of squares about it become mean and biased variance; in backward `sums` over
// rows, of the gradient and of that times the normalised term, are added up
typedef int64_t (*rnnorm_exchange)(int64_t site, int64_t first, int64_t count);

struct rnnorm_layer {
  int64_t cell;
  int64_t numbers;
  int64_t threads;
  int64_t T, B, I, H;
  // units of h: H, or fewer where each step multiplies the cell's h by weight_hr. The arrays of h are
  // (., B, R), and the masks of h and of its zoneout have R units
  int64_t R;
  // 1 or more: a unit reads the h of the units of its head alone, so that weight_hh is
  // (G H, R / heads). With bfloat16 a head has a multiple of 32 units; there is one head with a
  // projection and in an independent cell
  int64_t heads;
  const int64_t* sizes;  // active rows of each step, non-increasing
  int64_t min_rows;      // fewest rows a statistic is taken of, negative to take none
  // active rows of all processes at each step, which min_rows then counts; null if statistics are
  // of this process alone
  const int64_t* all_sizes;
  rnnorm_exchange exchange;
  int64_t joint;         // the hidden site is W_x x + W_h h
  int64_t carry;         // the next step reads the output of the cell site
  int64_t clears;        // output and all_c are zero after the end of rows
  int64_t recompute;     // compute W_x x again in backward instead of keeping it
  int64_t narrow;        // output is of the type of x, where no backward pass follows
  rnnorm_site site[RNNORM_SITES];
  const void *x, *h0;
  const void* c0;        // (states beside h, B, H), as are c_n and the gradients of both
  const uint8_t* reset;  // (T, B), 1 where a row begins anew before the step, or null
  const void *weight_ih, *weight_hh;
  const void* weight_hr;  // (R, H), null without a projection
  const void *bias_ih, *bias_hh;
  // each has one weight a unit, or is null; if a user's cell has more weights than these, the last one
  // holds all that are left, (weights - 2, H)
  const void* peephole[RNNORM_PEEPHOLES];
  rnnorm_mask mask[RNNORM_MASKS];
  void *output, *h_n, *c_n;
  void* all_c;  // (states beside h, T, B, H): those after every step, or null
  // what backward reads, by tile of hidden units (layout.h): room for every frame's W_x x, W_h h
  // and states with the units rounded up; null where nothing is kept
  void *saved_x, *saved_h, *saved_c;
  // c, the first state beside h, as the next step reads it, where zoneout or carry changes it
  void* saved_carried;
  // what weight_hr has multiplied, (frames, H), and in backward the gradient of its product, (frames,
  // R): the caller computes that of weight_hr from these
  void* saved_made;
  void* grad_projected;
  const void *grad_output, *grad_h_n, *grad_c_n, *grad_all_c;  // null for zeros
  void *grad_x, *grad_h0, *grad_c0;               // null if unwanted
  void *grad_weight_ih, *grad_weight_hh, *grad_bias_ih, *grad_bias_hh;
  void* grad_peephole[RNNORM_PEEPHOLES];
};

// returns 0, 1 if memory ran out, or 2 if an exchange has failed; then no other exchange follows,
// and no result is complete
RNNORM_API int rnnorm_forward(const rnnorm_layer*);
RNNORM_API int rnnorm_backward(const rnnorm_layer*);

// the population statistics of one site, from the first step of a call on, and what it took
struct rnnorm_population {
  const void *taken_mean, *taken_var;  // (steps, features), the variance biased
  void *mean, *var;                    // (steps, features)
  int64_t *rows, *batches;             // (steps,)
  const int64_t* counts;               // rows behind each step's statistic, or null for `count`
  int64_t count;
  int64_t steps, features;
  double momentum;  // least weight of a minibatch, or negative for its share of the rows
};

// takes a minibatch into the population statistics of several sites, all float or all double; a
// step without rows, or with a moment that is not finite, is left out. A minibatch weighs
// max(momentum, 1 / minibatches)
RNNORM_API void rnnorm_update(const rnnorm_population*, int64_t sites, int64_t is_double);

// size of a rnnorm_layer in bytes, by which a caller recognises another version of the interface
RNNORM_API int64_t rnnorm_layer_size();

// 1 if the build in use multiplies in bfloat16
RNNORM_API int rnnorm_has_bfloat16();

// the instruction set in use, or null if RNNORM_CPU_ISA names one that is unknown or absent
RNNORM_API const char* rnnorm_isa();

// runs a pass of a cell that was compiled at run time, as rnnorm_forward runs those of this library
RNNORM_API int rnnorm_run(int (*pass)(const rnnorm_layer*), const rnnorm_layer*);

// for passes: scratch of the calling thread, kept for the next call; null if memory ran out
RNNORM_API void* rnnorm_scratch(int64_t bytes);
// asks for huge pages for new memory: faults on small ones can take as long as the arithmetic
RNNORM_API void rnnorm_prefer_huge_pages(void* block, int64_t bytes);
// calls the task once for each rank; a pool of standard threads belongs to its calling thread
RNNORM_API void rnnorm_run_team(int64_t threads, void (*task)(void*, rnnorm::Team&, int64_t),
                                void* body);
}
