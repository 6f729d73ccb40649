"""Fewer threads than were asked for, as OpenMP may grant or the system may have."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_CODE = """
import torch
import rnnorm

def run(threads, proj_size):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer = rnnorm.LSTM(130, 256, norm="batch", initial_noise=0.0, proj_size=proj_size)
    x = torch.randn(30, 64, 130, requires_grad=True)
    with rnnorm.use_backend("cpu"):
        layer(x)[0].square().sum().backward()
    # the gradient of weight_hr is a product of torch's
    return [x.grad, *(p.grad for name, p in layer.named_parameters() if "weight_hr" not in name)]

for proj_size in (0, 100):
    alone = run(1, proj_size)
    for threads in (4, 7):
        assert all(map(torch.equal, run(threads, proj_size), alone)), (threads, proj_size)
"""


@pytest.mark.parametrize("limit", [1, 3])
def test_gradients_are_the_same_with_fewer_threads_than_asked_for(limit):
    environment = os.environ | {"OMP_THREAD_LIMIT": str(limit)}
    subprocess.run([sys.executable, "-c", _CODE], env=environment, check=True)


_SOURCES = Path(__file__).parents[2] / "csrc"
_TASK = """
#include <cstdio>
#include "threads.h"
static void task(void*, rnnorm::Team& team, int64_t) {
  team.barrier();
  std::printf("here\\n");
}
int main() {
  rnnorm_run_team(4, task, nullptr);
  rnnorm_run_team(4, task, nullptr);
}
"""


def compiled(code, folder):
    """A program of this code and the pool."""
    (folder / "task.cpp").write_text(code)
    files = [folder / "task.cpp", _SOURCES / "pool.cpp", _SOURCES / "team.cpp"]
    flags = ["-std=gnu++17", "-pthread", "-DRNNORM_STANDARD_THREADS", f"-I{_SOURCES}"]
    subprocess.run(["c++", *flags, *files, "-o", folder / "task"], check=True)
    return folder / "task"


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="a limit of memory is one of Linux")
def test_a_pool_makes_do_with_the_threads_that_it_gets(tmp_path):
    import resource

    task = compiled(_TASK, tmp_path)

    def threads_within(megabytes):
        def limited():
            # a thread's stack takes eight
            hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
            resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, hard))
            resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20,) * 2)

        pipe = subprocess.PIPE
        ran = subprocess.run([task], preexec_fn=limited, stdout=pipe, text=True, check=True)
        # of two calls
        return ran.stdout.count("here") / 2

    assert threads_within(20) in (1, 2, 3)
    assert threads_within(1000) == 4


_ENDINGS = """
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include "threads.h"
static void task(void* ran, rnnorm::Team& team, int64_t) {
  team.barrier();
  ++*static_cast<std::atomic<int>*>(ran);
}
int main() {
  std::atomic<int> ran{0};
  for (int k = 0; k < 20; ++k)
    std::thread([&] {
      for (int64_t threads : {4, 4, 3}) rnnorm_run_team(threads, task, &ran);
    }).join();
  const std::filesystem::directory_iterator threads("/proc/self/task");
  std::printf("%d, left %d\\n", int(ran), int(std::distance(begin(threads), end(threads))));
  std::fflush(stdout);
  rnnorm_run_team(4, task, &ran);
  const pid_t child = fork();
  if (!child) {
    ran = 0;
    for (int64_t threads : {4, 2}) rnnorm_run_team(threads, task, &ran);
    std::exit(ran);
  }
  int status;
  waitpid(child, &status, 0);
  std::printf("%d\\n", WEXITSTATUS(status));
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_pool_ends_with_its_thread_and_a_forked_process_has_another(tmp_path):
    task, pipe = compiled(_ENDINGS, tmp_path), subprocess.PIPE
    ran = subprocess.run([task], stdout=pipe, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == ["220, left 1", "6"]
