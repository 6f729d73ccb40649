// A GPU on the CPU, for tests: takes the place of kernels/cuda/device.cuh, so that the kernels run as
// they are. Every CUDA thread is a coroutine, and all take turns whenever one waits: for its warp, its
// block or another block. Races, the order of memory and speed cannot be seen here.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

using std::max;
using std::min;
typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
#define DEVICE inline
#define UNROLL
#define __global__
#define __launch_bounds__(threads, blocks)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static float2 make_float2(float x, float y) { return {x, y}; }

// threads that wait until all of them have arrived
struct Meeting {
  int size = 0, arrived = 0, generation = 0;
};
struct Warp {
  Meeting meeting;
  u32 slots[32][8];
};
struct Block {
  int index;
  Meeting meeting, some;
  std::vector<char> memory;
  std::vector<Warp> warps;
};
struct Coroutine {
  ucontext_t context;
  std::vector<char> stack;
  Block* block;
  int thread;
  bool done = false;
};

static struct {
  int x;
} threadIdx, blockIdx, gridDim, blockDim;
static ucontext_t scheduler;
static Coroutine* current;
// turns since a thread last got further
static long idle;

static void give_turn() {
  ++idle;
  swapcontext(&current->context, &scheduler);
}
static void meet(Meeting& meeting) {
  const int generation = meeting.generation;
  idle = 0;
  if (++meeting.arrived == meeting.size) {
    meeting.arrived = 0;
    ++meeting.generation;
    return;
  }
  while (meeting.generation == generation) give_turn();
}
static Warp& own_warp() { return current->block->warps[threadIdx.x / 32]; }
static int own_lane() { return threadIdx.x % 32; }
static void meet_warp() { meet(own_warp().meeting); }
static void __syncthreads() { meet(current->block->meeting); }
template <int THREADS>
static void sync_some() {
  current->block->some.size = THREADS;
  meet(current->block->some);
}

static void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}
static char* shared_space() { return current->block->memory.data(); }
static u32 shared_address(const void* p) { return (u32)((const char*)p - shared_space()); }
static char* shared(u32 at, size_t bytes) {
  if (at % 16) fail("an address in shared memory is not a multiple of 16");
  if (at + bytes > current->block->memory.size()) fail("an address is past the shared memory");
  return shared_space() + at;
}

static int load_acquire(const int* p) {
  give_turn();
  return *p;
}
static float2 load_fresh(const float2* p) { return *p; }
static void add_release(int* p, int value) {
  idle = 0;
  *p += value;
}
static i64 clock64() { return 0; }

// a copy of either kind is done only when it is waited for, as late as a GPU may do it
struct Copy {
  u32 to;
  const void* from;
};
static std::vector<std::vector<std::vector<Copy>>> copies;  // of each coroutine, of each open group
static std::vector<std::vector<Copy>>& own_copies() {
  return copies[(size_t)current->block->index * blockDim.x + threadIdx.x];
}
static void copy_async(u32 to, const void* from) {
  if ((size_t)from % 16) fail("a copy is not from a multiple of 16 bytes");
  shared(to, 16);
  auto& groups = own_copies();
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({to, from});
}
static void end_copy_group() {
  auto& groups = own_copies();
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}
template <int LATER>
static void wait_for_copies() {
  auto& groups = own_copies();
  // the last one is still open
  while ((int)groups.size() - 1 > LATER) {
    for (const Copy& copy : groups.front()) std::memcpy(shared(copy.to, 16), copy.from, 16);
    groups.erase(groups.begin());
  }
}

// barriers in shared memory count arrivals and bytes
struct Bulk {
  u32 to;
  const void* from;
  int bytes;
};
struct Counts {
  int size, arrivals, bytes, phase;
  std::vector<Bulk> copies;  // on their way
  int asked;                 // for them
};
static Counts& counts(u32 barrier) {
  static std::map<const char*, Counts> all;
  return all[shared(barrier / 16 * 16, 16) + barrier % 16];
}
static void settle(Counts& c) {
  idle = 0;
  if (c.arrivals == 0 && c.bytes == 0) c.phase ^= 1, c.arrivals = c.size;
}
[[maybe_unused]] static void barrier_init(u32 barrier, int arrivals) {
  counts(barrier) = {arrivals, arrivals, 0, 0, {}, 0};
}
[[maybe_unused]] static void barrier_arrive(u32 barrier) {
  --counts(barrier).arrivals;
  settle(counts(barrier));
}
[[maybe_unused]] static void barrier_expect(u32 barrier, int bytes) {
  counts(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
[[maybe_unused]] static bool barrier_passed(u32 barrier, u32 parity) {
  Counts& c = counts(barrier);
  if (c.phase != (int)parity) return true;
  // once every thread has asked, so that one that does not wait gets there first
  if (!c.copies.empty() && ++c.asked >= blockDim.x - 32) {
    c.asked = 0;
    for (const Bulk& copy : c.copies) {
      std::memcpy(shared(copy.to, copy.bytes), copy.from, copy.bytes);
      c.bytes -= copy.bytes;
    }
    c.copies.clear();
    settle(c);
  }
  give_turn();
  return false;
}
[[maybe_unused]] static void copy_bulk(u32 to, const void* from, int bytes, u32 barrier) {
  if ((size_t)from % 16 || bytes % 16 || !bytes) fail("a copy is not of a multiple of 16 bytes");
  shared(to, bytes);
  counts(barrier).copies.push_back({to, from, bytes});
}
static void fence_copies() {}
[[maybe_unused]] static void fence_barriers() {}
static void __syncwarp() { meet_warp(); }

static float __shfl_xor_sync(u32, float value, int lanes) {
  Warp& warp = own_warp();
  std::memcpy(&warp.slots[own_lane()][0], &value, 4);
  meet_warp();
  std::memcpy(&value, &warp.slots[own_lane() ^ lanes][0], 4);
  meet_warp();
  return value;
}
template <int N>
static void load_matrices(u32 (&to)[N], u32 from) {
  Warp& warp = own_warp();
  const int lane = own_lane();
  warp.slots[lane][0] = from;
  meet_warp();
  for (int i = 0; i < N; ++i)
    std::memcpy(&to[i], shared(warp.slots[i * 8 + lane / 4][0], 16) + lane % 4 * 4, 4);
  meet_warp();
}

static float as_float(u32 bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
static u32 as_bits(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
static float __uint_as_float(u32 bits) { return as_float(bits); }
static u16 to_bf16(float x) {
  const u32 bits = as_bits(x);
  if (x != x) return 0x7fff;
  return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
static u32 to_tf32(float x) {
  if (!std::isfinite(x)) return as_bits(x);
  return (as_bits(x) + 0x1000u) & 0xffffe000u;
}
static u16 to_fp16(float x) {
  const _Float16 half = (_Float16)x;
  u16 bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
static float from_fp16(u16 bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return (float)half;
}

template <class Widen>
static void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Widen widen) {
  auto& slots = own_warp().slots;
  const int lane = own_lane();
  for (int i = 0; i < 4; ++i) slots[lane][i] = a[i];
  for (int i = 0; i < 2; ++i) slots[lane][4 + i] = b[i];
  meet_warp();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i >> 1) * 8, column = lane % 4 * 2 + (i & 1);
    double sum = d[i];
    for (int half = 0; half < 2; ++half)
      for (int k = 0; k < 4; ++k) {
        const u32 x = slots[row % 8 * 4 + k][row / 8 + 2 * half], y = slots[column * 4 + k][4 + half];
        sum += widen(x, y);
      }
    d[i] = (float)sum;
  }
  meet_warp();
}
static void multiply_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  multiply(d, a, b, [](u32 x, u32 y) {
    return (double)as_float(x << 16) * as_float(y << 16) +
           (double)as_float(x & 0xffff0000u) * as_float(y & 0xffff0000u);
  });
}
static void multiply_fp16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  multiply(d, a, b, [](u32 x, u32 y) {
    return (double)from_fp16((u16)x) * from_fp16((u16)y) +
           (double)from_fp16((u16)(x >> 16)) * from_fp16((u16)(y >> 16));
  });
}
static void multiply_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  multiply(d, a, b, [](u32 x, u32 y) {
    return (double)as_float(x & 0xffffe000u) * as_float(y & 0xffffe000u);
  });
}
static float rsqrtf(float x) { return 1.f / std::sqrt(x); }
#define __expf expf

// Run a kernel: `grid` blocks of `threads` threads with `bytes` of shared memory each.
static void launch(void (*kernel)(), int grid, int threads, int bytes) {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Coroutine>> all;
  copies.assign((size_t)grid * threads, {});
  gridDim.x = grid, blockDim.x = threads;
  for (int b = 0; b < grid; ++b) {
    auto block = std::make_unique<Block>();
    block->index = b;
    block->meeting.size = threads;
    // numbers that nobody wrote are NaN
    block->memory.assign(bytes, (char)0xff);
    block->warps.resize(threads / 32);
    for (Warp& warp : block->warps) warp.meeting.size = 32;
    for (int t = 0; t < threads; ++t) {
      auto each = std::make_unique<Coroutine>();
      each->block = block.get(), each->thread = t;
      each->stack.resize(65536);
      getcontext(&each->context);
      each->context.uc_stack.ss_sp = each->stack.data();
      each->context.uc_stack.ss_size = each->stack.size();
      each->context.uc_link = &scheduler;
      makecontext(&each->context, kernel, 0);
      all.push_back(std::move(each));
    }
    blocks.push_back(std::move(block));
  }
  size_t left = all.size();
  idle = 0;
  while (left)
    for (auto& each : all) {
      if (each->done) continue;
      current = each.get();
      threadIdx.x = each->thread, blockIdx.x = each->block->index;
      swapcontext(&scheduler, &each->context);
      if (current) {
        if (idle > 20 * (long)all.size()) fail("the threads wait for one another");
        continue;
      }
      each->done = true, idle = 0;
      --left;
    }
}
