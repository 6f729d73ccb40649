// loads the library on Windows, runs passes in threads that end, unloads it, and all of that again
#include <windows.h>
#include <tlhelp32.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "layer.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::printf("failed: %s\n", what);
  std::fflush(stdout);
  // the destructors of a library may be what waits for ever
  TerminateProcess(GetCurrentProcess(), 1);
}

int threads_of_process() {
  const HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
  THREADENTRY32 entry{};
  entry.dwSize = sizeof(entry);
  int count = 0;
  for (BOOL more = Thread32First(all, &entry); more; more = Thread32Next(all, &entry))
    count += entry.th32OwnerProcessID == GetCurrentProcessId();
  CloseHandle(all);
  return count;
}

// a forward pass of an LSTM, all of whose numbers are the same
void run_pass(HMODULE library, int64_t threads) {
  const auto forward = reinterpret_cast<decltype(&rnnorm_forward)>(
      reinterpret_cast<void*>(GetProcAddress(library, "rnnorm_forward")));
  require(forward, "rnnorm_forward is exported");
  const int64_t T = 5, B = 8, I = 16, H = 64;
  const std::vector<int64_t> sizes(T, B);
  const std::vector<float> numbers(4 * H * H, 0.01f);
  std::vector<float> output(T * B * H, 9.0f), h_n(B * H), c_n(B * H);
  rnnorm_layer a{};
  a.cell = RNNORM_LSTM, a.numbers = RNNORM_FLOAT, a.threads = threads;
  a.T = T, a.B = B, a.I = I, a.H = H, a.heads = 1;
  a.sizes = sizes.data(), a.min_rows = -1, a.clears = 1;
  a.x = a.h0 = a.c0 = a.weight_ih = a.weight_hh = a.bias_ih = a.bias_hh = numbers.data();
  a.output = output.data(), a.h_n = h_n.data(), a.c_n = c_n.data();
  require(forward(&a) == 0, "a pass has memory");
  for (const float value : output) require(value > 0.005f && value < 0.1f, "a pass is right");
}

struct Job {
  HMODULE library;
  HANDLE ran, may_end;
};

DWORD WINAPI run_and_wait(void* given) {
  const Job& job = *static_cast<Job*>(given);
  run_pass(job.library, 3);
  SetEvent(job.ran);
  WaitForSingleObject(job.may_end, INFINITE);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  require(count == 2, "the path of the library is the one argument");
  Job job{nullptr, CreateEventA(nullptr, FALSE, FALSE, nullptr),
          CreateEventA(nullptr, FALSE, FALSE, nullptr)};
  const int alone = threads_of_process();
  for (int round = 0; round < 40; ++round) {
    job.library = LoadLibraryA(arguments[1]);
    require(job.library, "the library is loaded");
    const HANDLE thread = CreateThread(nullptr, 0, run_and_wait, &job, 0, nullptr);
    require(WaitForSingleObject(job.ran, 30000) == WAIT_OBJECT_0, "a thread runs a pass");
    // in every second round the library is unloaded before the thread ends
    if (round % 2) FreeLibrary(job.library);
    SetEvent(job.may_end);
    require(WaitForSingleObject(thread, 30000) == WAIT_OBJECT_0, "a thread that ran a pass ends");
    CloseHandle(thread);
    if (round % 2 == 0) FreeLibrary(job.library);
    for (int wait = 0; threads_of_process() > alone; ++wait) {
      require(wait < 3000, "the threads of a pool end");
      Sleep(10);
    }
  }
  job.library = LoadLibraryA(arguments[1]);
  // each number of threads ends a pool and starts another, so that threads end while others begin
  for (int round = 0; round < 1500; ++round) run_pass(job.library, 1 + (round * 7) % 5);
  FreeLibrary(job.library);
  std::printf("loaded and unloaded\n");
  // the process ends while a pool of its first thread waits for a pass
}
