"""Keep the memory that a training step frees for the next step."""

from __future__ import annotations

import ctypes
import os
import platform

# from malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST = 2**31 - 1


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for this process, unless the environment sets its thresholds.

    By default glibc returns large freed blocks to the system, and every training step waits for
    the same pages again. Other C libraries are left alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    if os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}:
        return
    set_option = ctypes.CDLL(None).mallopt
    set_option(_M_MMAP_THRESHOLD, _MOST)
    set_option(_M_TRIM_THRESHOLD, _MOST)
