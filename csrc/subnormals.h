// subnormal numbers count as zero while a pass runs
#pragma once
#include <cstdint>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace rnnorm {
namespace {

// for this thread, until the object is destroyed: some processors need over a hundred cycles for
// a subnormal number, and a gradient that vanishes over many steps consists of them
class NoSubnormals {
 public:
  NoSubnormals() : before_(read()) { write(before_ | flags); }
  ~NoSubnormals() { write(before_); }
  NoSubnormals(const NoSubnormals&) = delete;
  NoSubnormals& operator=(const NoSubnormals&) = delete;

 private:
#if defined(__SSE__)
  using Register = unsigned;
  // flush results to zero, take operands as zeros
  static constexpr Register flags = 1u << 15 | 1u << 6;
  static Register read() { return _mm_getcsr(); }
  static void write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register flags = Register(1) << 24;
  static Register read() {
    Register value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Register value) { __asm__ volatile("msr fpcr, %0" ::"r"(value)); }
#else
  using Register = unsigned;
  static constexpr Register flags = 0;
  static Register read() { return 0; }
  static void write(Register) {}
#endif
  const Register before_;
};

}  // namespace
}  // namespace rnnorm
