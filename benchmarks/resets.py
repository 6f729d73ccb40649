"""A training step with resets in the call ÷ torch.nn.LSTM's without any, verified, one thread.

    python benchmarks/resets.py
    python benchmarks/resets.py --shape 64x64x32x128 --share 0.05

Rivals restart rows as reinforcement learning does: a loop of cells with the state set to zero, and
torch.nn.LSTM over the pieces, padded to the longest. The last column is each of our layers ÷ the
same layer without resets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import rnnorm
from rnnorm.experiments.bench.layers import Shape, Step, on_backend, read_shape, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

# windows of recurrent policies, with the share of frames at which an episode begins
CASES = [
    (Shape(128, 2, 512, 128), 0.01),
    (Shape(128, 128, 64, 256), 0.03),
    (Shape(32, 256, 64, 64), 0.02),
]
OURS = {"plain": None, "layer": "layer", "batch": "batch"}


def step(layer: nn.Module, run: Callable[[], Tensor]) -> dict[str, Tensor]:
    """The output and the gradients of all parameters, under the names of a sequence layer."""
    output = run()
    names, parameters = zip(*layer.named_parameters(), strict=True)
    names = tuple(name if "_l0" in name else f"{name}_l0" for name in names)
    grads = torch.autograd.grad(output.square().sum(), parameters)
    return {"output": output.detach(), **dict(zip(names, grads, strict=True))}


def loop_of_cells(cell: nn.LSTMCell, x: Tensor, reset: Tensor) -> Tensor:
    """A step at a time, the state times zero where an episode begins."""
    h = c = x.new_zeros(x.size(1), cell.hidden_size)
    outputs = []
    for frame, kept in zip(x, (~reset).float().unsqueeze(2), strict=True):
        h, c = cell(frame, (h * kept, c * kept))
        outputs.append(h)
    return torch.stack(outputs)


def split_and_pad(lstm: nn.LSTM, x: Tensor, reset: Tensor) -> Tensor:
    """The pieces side by side, padded to the longest; padding runs along."""
    T, B, _ = x.shape
    starts = reset.T.clone()
    starts[:, 0] = True
    lengths = starts.flatten().nonzero().squeeze(1).diff(append=torch.tensor([T * B])).tolist()
    pieces = x.transpose(0, 1).flatten(0, 1).split(lengths)
    output, _ = lstm(pad_sequence(pieces))
    real = torch.arange(output.size(0)) < torch.tensor(lengths).unsqueeze(1)
    return output.transpose(0, 1)[real].view(B, T, -1).transpose(0, 1)


def first(layer: nn.Module, x: Tensor, options: dict[str, Tensor]) -> Tensor:
    """The output of a call."""
    output, _ = layer(x, **options)
    return output


def build(shape: Shape, share: float) -> dict[str, Step]:
    """Every step by name, the plain ones verified with torch's, all of ours with the reference."""
    torch.manual_seed(0)
    x, reset = torch.randn(shape[:3]), torch.rand(shape[:2]) < share
    lstm, cell = nn.LSTM(shape.I, shape.H), nn.LSTMCell(shape.I, shape.H)
    weights = lstm.state_dict()
    cell.load_state_dict({name.removesuffix("_l0"): w for name, w in weights.items()})
    steps: dict[str, Step] = {
        "torch.nn.LSTM, no resets": partial(step, lstm, lambda: lstm(x)[0]),
        "loop of torch.nn.LSTMCell": partial(step, cell, lambda: loop_of_cells(cell, x, reset)),
        "split, pad, torch.nn.LSTM": partial(step, lstm, lambda: split_and_pad(lstm, x, reset)),
    }
    rivals = list(steps.values())[1:]
    for name, norm in OURS.items():
        # the statistics of two rows explode
        if norm == "batch" and shape.B < 8:
            continue
        layer = rnnorm.LSTM(shape.I, shape.H, norm=norm, initial_noise=0.0)
        layer.load_state_dict(weights, strict=False)
        wide = deepcopy(layer).double()
        for options in ({}, {"reset": reset}):
            run, exact = (
                partial(step, each, partial(first, each, data, options))
                for each, data in ((layer, x), (wide, x.double()))
            )
            text = f"ours, {name}" + (", resets" if options else "")
            # without resets it is torch's own that would run
            steps[text] = run if options or norm else partial(on_backend, "cpu", run)
            references = [partial(on_backend, "reference", each) for each in (run, exact)]
            verify(f"{shape} {text}", steps[text], *references)
    for rival in rivals:
        verify(f"{shape} rival", rival, steps["ours, plain, resets"])
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shape", type=read_shape, help="TxBxIxH")
    parser.add_argument("--share", type=float, default=0.03, help="of resets, with --shape")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each shape")
    args = parser.parse_args()
    if not 0 <= args.share <= 1:
        parser.error(f"--share must be from 0 to 1, got {args.share}")
    with torch_threads(args.threads):
        print(describe(machine()))
        for shape, share in [(args.shape, args.share)] if args.shape else CASES:
            took = interleave(build(shape, share), args.seconds)
            for name, timing in took.items():
                same = took.get(name.removesuffix(", resets"), timing)
                beside = f"{timing.seconds / same.seconds:6.2f}" if same is not timing else ""
                print(
                    f"{shape!s:15} {share:4.0%} {name:26} {1e3 * timing.seconds:8.2f} ms {timing}"
                    f"{beside}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
