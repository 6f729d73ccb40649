"""Seconds of training steps on each kernel, beside torch.nn's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from rnnorm.experiments.bench.examine import raised
from rnnorm.experiments.bench.layers import (
    Shape,
    Step,
    Variant,
    draw_input,
    make_layer,
    on_backend,
    run_layer,
)
from rnnorm.experiments.bench.record import Record
from rnnorm.experiments.bench.timing import captured, interleave, launched, repeated


def step_times(
    device: torch.device,
    kernels: Sequence[str],
    shapes: Sequence[Shape],
    seconds: float,
    faults: list[Record],
) -> list[Record]:
    """Median seconds of training steps, printed; what is raised becomes a fault."""
    cuda = device.type == "cuda"
    times: list[Record] = []
    print(
        "\nmedian ms of a training step: torch.nn.LSTM, and an LSTM with batch norm on each kernel"
    )
    for shape in shapes:
        torch.manual_seed(0)
        data: Any = draw_input(shape)
        data = data.to(device)
        rival = make_layer("LSTM", shape).to(device)
        steps: dict[str, Step] = {"torch.nn": partial(run_layer, rival, data, True)}
        for name in ("reference", *kernels):
            layer = make_layer("LSTM", shape, Variant("batch", name)).to(device)
            step = partial(on_backend, name, partial(run_layer, layer, data, True))
            own: dict[str, Step] = {name: launched(step)}
            try:
                own[name]()
                if cuda and name != "reference":
                    own |= {f"{name} graphs": repeated(step), f"{name} captured": captured(step)}
            except Exception as error:
                names = {"kernel": name, "cell": "LSTM", "norm": "batch"}
                case = f"training step {shape}"
                faults.append({**names, "case": case, "tensor": "all", "what": raised(error)})
                continue
            steps |= own
        timings = interleave(steps, seconds, clock="cuda" if cuda else "wall", fewest=3)
        if not times:
            print(" " * 16 + "".join(name.rjust(17) for name in steps))
        columns = "".join(f"{1000 * timing.seconds:17.2f}" for timing in timings.values())
        print(f"{shape!s:16}{columns}", flush=True)
        times.append({"shape": str(shape), **{n: t.seconds for n, t in timings.items()}})
    return times
