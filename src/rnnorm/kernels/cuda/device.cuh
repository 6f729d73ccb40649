// The instructions of a GPU that the kernels use beyond C++, as functions.

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")

extern __shared__ __align__(128) char shared_memory[];
DEVICE char* shared_space() { return shared_memory; }

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// loads that see what other blocks wrote: of a counter, and of numbers after a counter was read
DEVICE int load_acquire(const int* p) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}
DEVICE float2 load_fresh(const float2* p) {
  float2 value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value.x) : "l"(&p->x) : "memory");
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value.y) : "l"(&p->y) : "memory");
  return value;
}
// everything that this thread has seen is seen by whoever acquires the new value
DEVICE void add_release(int* p, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// wait for the first THREADS threads of the block
template <int THREADS>
DEVICE void sync_some() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// copies of 16 bytes into shared memory, past the first cache, in groups
DEVICE void copy_async(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER>
DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

#if BULK
// barriers in shared memory, and copies of any multiple of 16 bytes that arrive at them
DEVICE void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void barrier_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE bool barrier_passed(u32 barrier, u32 parity) {
  u32 passed;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed;
}
DEVICE void copy_bulk(u32 to, const void* from, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// later copies see what this thread wrote or saw, and its later accesses see what they wrote
DEVICE void fence_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }
DEVICE void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#else
DEVICE void fence_copies() {}
#endif

// four, or two, matrices of 8 rows of 16 bytes, each row at the address of one thread
DEVICE void load_matrices(u32 (&to)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
DEVICE void load_matrices(u32 (&to)[2], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(from)
               : "memory");
}

// d += a b of 16 rows and 8 columns, with 32 bytes of every row and column
#define MULTIPLY(NAME, SHAPE, TYPES)                                                            \
  DEVICE void NAME(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {                       \
    asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPES ".f32 "                        \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"              \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));           \
  }
MULTIPLY(multiply_bf16, "m16n8k16", "bf16.bf16")
MULTIPLY(multiply_fp16, "m16n8k16", "f16.f16")
MULTIPLY(multiply_tf32, "m16n8k8", "tf32.tf32")
#undef MULTIPLY

DEVICE u32 to_tf32(float x) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
DEVICE u16 to_bf16(float x) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
DEVICE u16 to_fp16(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
DEVICE float from_fp16(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
