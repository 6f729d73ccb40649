// One variant of a kernel as a library: `run` launches it with arguments as on a GPU.
#include "device.h"
// the constants of the variant are on the compiler's command line
#include "functions.cuh"
#include EQUATIONS
#include "layout.cuh"
#include "exchange.cuh"
#include "sums.cuh"
#if BACKWARD
#include "backward.cu"
typedef BackwardArguments Arguments;
#define KERNEL backward
#else
#include "forward.cu"
typedef ForwardArguments Arguments;
#define KERNEL forward
#endif

static const Arguments* arguments;
static void body() {
  KERNEL(*arguments);
  current = nullptr;
}
[[maybe_unused]] static void no_warning() { (void)&sync_some<32>; }
extern "C" void run(const Arguments* given, int grid, int threads, int bytes) {
  arguments = given;
  launch(body, grid, threads, bytes);
}
