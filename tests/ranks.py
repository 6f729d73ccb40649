"""Processes of torch.distributed for a test: each runs one function of a test file."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch


def start(function, world: int, folder: Path, *args: str) -> list[subprocess.Popen]:
    """``function(rank, world, folder, *args)`` in ``world`` processes; a file of tests holds it."""
    path = Path(function.__code__.co_filename)
    code = (
        f"import sys; sys.path[:] = {[str(path.parent), *sys.path]!r}\n"
        f"import {path.stem} as test\n"
        f"from pathlib import Path\n"
        f"test.{function.__name__}(int(sys.argv[1]), {world}, Path({str(folder)!r}), *{args!r})"
    )
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Exit code and output of each."""
    try:
        return [
            (p.wait(), out) for p, out in [(p, p.communicate(timeout=300)[0]) for p in processes]
        ]
    finally:
        for process in processes:
            process.kill()


def join(rank: int, world: int, folder: Path) -> None:
    """Meets the others."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), world)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120)
    )


def leave() -> None:
    """Waits for the others."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
