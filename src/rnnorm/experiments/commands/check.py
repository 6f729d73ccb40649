"""The command ``rnnorm check``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from rnnorm.experiments.commands import options

HELP = "test on this machine that the fused kernels are right and repeatable, and time them"
USAGE = ("[--device cpu|cuda] [--seconds SECONDS] [--out FILE]",)


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.bench.check.check`."""
    own = options.Arguments(parser, "bench.check.check")
    own.option("device", choices=("cpu", "cuda"))
    own.option("budget", "SECONDS", "--seconds")
    own.option("out", "FILE")


def run(device: str, budget: float | None, out: str | None) -> int:
    """Examine the kernels and print what is found.

    Returns:
        The exit status: 0 if all is right, 1 if something is wrong or there is no kernel to
        examine, 2 without such a device, 3 if time ran out and nothing was wrong until then.
    """
    from rnnorm.experiments.bench.check import DeviceMissingError, OutOfTimeError, check

    try:
        return 0 if check(device, out=out, budget=budget) else 1
    except OutOfTimeError:
        return 3
    except DeviceMissingError as error:
        print(f"rnnorm check: --device {device}: {error}", file=sys.stderr)
        return 2
