// subnormal numbers count as zero while a pass runs
#pragma once
#include <cstdint>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace rnnorm {
namespace {

// a thread's register that says how it computes with floating-point numbers
struct FloatControl {
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
};

// sets this thread's register until the object is destroyed
class WithFloatControl {
 public:
  explicit WithFloatControl(FloatControl::Register wanted) : before_(FloatControl::read()) {
    FloatControl::write(wanted);
  }
  ~WithFloatControl() { FloatControl::write(before_); }
  WithFloatControl(const WithFloatControl&) = delete;
  WithFloatControl& operator=(const WithFloatControl&) = delete;

 private:
  const FloatControl::Register before_;
};

// some processors need over a hundred cycles for a subnormal number, and a gradient that vanishes
// over many steps consists of them
struct NoSubnormals : WithFloatControl {
  NoSubnormals() : WithFloatControl(FloatControl::read() | FloatControl::flags) {}
};

}  // namespace
}  // namespace rnnorm
