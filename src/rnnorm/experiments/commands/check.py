"""The command ``rnnorm check``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

HELP = "examine the fused kernels on this machine: right, repeatable, and how fast"
USAGE = ("[--device cpu|cuda] [--seconds SECONDS] [--out FILE]",)


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`rnnorm.experiments.bench.check.check`."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="whose kernels (cpu)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        dest="budget",
        metavar="SECONDS",
        help="how long cases are examined, then come some seconds of timings (120; cuda: 600)",
    )
    parser.add_argument("--out", metavar="FILE", help="JSON file for every number and fault")


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
