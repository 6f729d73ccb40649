// the C ABI: picks the build for this processor, and keeps scratch memory
#include <cstdlib>
#include <cstring>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef _WIN32
#include <malloc.h>
#endif
#ifdef RNNORM_X86_AMX
#include <cpuid.h>
#endif

#include "layer.h"
#include "per_thread.h"

#define DECLARE(isa)                                         \
  extern "C" int rnnorm_forward_##isa(const rnnorm_layer*);  \
  extern "C" int rnnorm_backward_##isa(const rnnorm_layer*); \
  extern "C" void rnnorm_update_##isa(const rnnorm_population*, int64_t, int64_t);
DECLARE(portable)
#ifdef RNNORM_X86
DECLARE(avx2)
DECLARE(avx512)
#endif
#ifdef RNNORM_X86_BFLOAT16
DECLARE(avx512_bf16)
#endif
#ifdef RNNORM_X86_AMX
DECLARE(amx)
#endif

namespace {

struct Passes {
  int (*forward)(const rnnorm_layer*);
  int (*backward)(const rnnorm_layer*);
};

struct Build {
  const char* name;
  bool available;
  Passes passes;
  Passes bfloat16;  // null where products of it are not built
  void (*update)(const rnnorm_population*, int64_t, int64_t);
};

#define PASSES(isa) {rnnorm_forward_##isa, rnnorm_backward_##isa}

#ifdef RNNORM_X86_AMX
// whether this processor multiplies bfloat16 in tiles, and Linux lets this process do so
bool may_use_amx() {
  unsigned eax, ebx, ecx, edx;
  const unsigned tiles = 1u << 24 | 1u << 22;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & tiles) != tiles) return false;
  const long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

Build choose() {
  const char* wanted = std::getenv("RNNORM_CPU_ISA");
  const auto may_be = [&](const char* name) {
    return !wanted || !*wanted || !std::strcmp(wanted, name);
  };
#ifdef RNNORM_X86
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("fma");
  const Build builds[] = {
#ifdef RNNORM_X86_AMX
      {"amx",
       may_be("amx") && avx512 && __builtin_cpu_supports("avx512bf16") && may_use_amx(),
       PASSES(avx512), PASSES(amx), rnnorm_update_amx},
#endif
#ifdef RNNORM_X86_BFLOAT16
      {"avx512_bf16", avx512 && __builtin_cpu_supports("avx512bf16"), PASSES(avx512),
       PASSES(avx512_bf16), rnnorm_update_avx512_bf16},
#endif
      {"avx512", avx512, PASSES(avx512), {}, rnnorm_update_avx512},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), PASSES(avx2), {},
       rnnorm_update_avx2},
      {"portable", true, PASSES(portable), {}, rnnorm_update_portable},
  };
#else
  const Build builds[] = {{"portable", true, PASSES(portable), {}, rnnorm_update_portable}};
#endif
  for (const Build& build : builds)
    if (build.available && may_be(build.name)) return build;
  return {};
}

const Build build = choose();

constexpr int64_t huge_page = int64_t(1) << 21;
// malloc takes blocks of this size from the system each time; smaller ones reuse pages
[[maybe_unused]] constexpr int64_t always_new = int64_t(32) << 20;
// larger blocks are given back after the call
constexpr int64_t largest_kept = int64_t(256) << 20;

void* allocate(size_t alignment, size_t bytes) {
#ifdef _WIN32
  return _aligned_malloc(bytes, alignment);
#else
  return std::aligned_alloc(alignment, bytes);
#endif
}

void deallocate(void* block) {
#ifdef _WIN32
  _aligned_free(block);
#else
  std::free(block);
#endif
}

struct Scratch {
  void* block = nullptr;
  int64_t bytes = 0;
  void release() {
    deallocate(block);
    block = nullptr;
    bytes = 0;
  }
  void swap(Scratch& other) {
    std::swap(block, other.block);
    std::swap(bytes, other.bytes);
  }
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { release(); }
};

rnnorm::PerThread<Scratch> scratch_of_thread;
thread_local int passes = 0;  // passes that run: an exchange may start another one

const Passes& passes_for(const rnnorm_layer* layer) {
  return layer->numbers == RNNORM_BFLOAT16 ? build.bfloat16 : build.passes;
}

}  // namespace

extern "C" {

int rnnorm_run(int (*pass)(const rnnorm_layer*), const rnnorm_layer* layer) {
  Scratch& scratch = scratch_of_thread();
  if (passes) {
    // a nested pass has its own memory and one thread: the threads of the outer pass wait
    Scratch outer;
    outer.swap(scratch);
    rnnorm_layer alone = *layer;
    alone.threads = 1;
    const int failed = pass(&alone);
    outer.swap(scratch);
    return failed;
  }
  ++passes;
  const int failed = pass(layer);
  --passes;
  if (scratch.bytes > largest_kept) scratch.release();
  return failed;
}

int64_t rnnorm_layer_size() { return sizeof(rnnorm_layer); }

const char* rnnorm_isa() { return build.name; }

int rnnorm_has_bfloat16() { return build.bfloat16.forward != nullptr; }

int rnnorm_forward(const rnnorm_layer* layer) {
  return rnnorm_run(passes_for(layer).forward, layer);
}

int rnnorm_backward(const rnnorm_layer* layer) {
  return rnnorm_run(passes_for(layer).backward, layer);
}

void rnnorm_update(const rnnorm_population* of, int64_t sites, int64_t is_double) {
  build.update(of, sites, is_double);
}

void rnnorm_prefer_huge_pages(void* block, int64_t bytes) {
#ifdef __linux__
  if (!block || bytes < always_new) return;
  // only pages that lie within the block
  const int64_t before = -reinterpret_cast<intptr_t>(block) & (huge_page - 1);
  const int64_t within = (bytes - before) & -huge_page;
  madvise(static_cast<char*>(block) + before, size_t(within), MADV_HUGEPAGE);
#else
  (void)block, (void)bytes;
#endif
}

void* rnnorm_scratch(int64_t bytes) {
  Scratch& scratch = scratch_of_thread();
  if (bytes > scratch.bytes) {
    scratch.release();
    // whole huge pages where they are large
    const size_t alignment = bytes >= huge_page ? size_t(huge_page) : 64;
    const size_t rounded = (size_t(bytes) + alignment - 1) / alignment * alignment;
    scratch.block = allocate(alignment, rounded);
#ifdef __linux__
    if (scratch.block && alignment > 64) madvise(scratch.block, rounded, MADV_HUGEPAGE);
#endif
    scratch.bytes = scratch.block ? int64_t(rounded) : 0;
  }
  return scratch.block;
}
}
