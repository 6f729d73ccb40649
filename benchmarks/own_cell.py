"""How fast a cell of your own is: the table of docs/own-cell.md.

Layers that are compiled as cells of one's own are timed beside the built-in LSTM and GRU, and the
cells of that page beside the reference kernel and a loop written by hand. Under autocast a cell
with heads is timed beside itself in float32. Rivals take turns in one process.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, logsigmoid

import rnnorm


class LSTM(rnnorm.Cell):
    gates = (4,)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        i, f, g, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(normalise("cell", c))
        return h, (h, c)


class GRU(rnnorm.Cell):
    gates = (2, 1)
    sites = ("input", "recurrent")

    def shifts(self, weights, sites):
        return {"input": weights.bias_ih, "recurrent": weights.bias_hh}

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        x_r, x_z, x_n = x_term.chunk(3, 1)
        term = normalise("recurrent", self.product(h, weights.weight_hh))
        h_r, h_z, h_n = term.chunk(3, 1)
        n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
        h = torch.lerp(n, h, torch.sigmoid(x_z + h_z))
        return h, (h,)


class MinimalGatedUnit(rnnorm.Cell):
    """A forget gate that is the update gate, too (Zhou et al. 2016)."""

    gates = (1, 1)
    sites = ("input", "recurrent")

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        x_f, x_n = x_term.chunk(2, 1)
        h_f, h_n = normalise("recurrent", self.product(h, weights.weight_hh)).chunk(2, 1)
        f = torch.sigmoid(x_f + h_f)
        h = torch.lerp(h, torch.tanh(x_n + f * h_n), f)
        return h, (h,)


class SLSTM(rnnorm.Cell):
    """Exponential gates, four heads and four states (Beck et al. 2024)."""

    gates = (4,)
    states = ("h", "c", "n", "m")
    heads = 4

    def step(self, weights, x_term, state, normalise, t):
        h, c, n, m = state
        i, f, z, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        f = logsigmoid(f) + m
        m = torch.maximum(f, i)
        i, f = torch.exp(i - m), torch.exp(f - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        return h, (h, c, n, m)


class DreamerGRU(rnnorm.Cell):
    """A GRU whose reset gate acts on the whole candidate (Hafner et al. 2021)."""

    gates = (3,)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        r, n, u = self.preactivation(weights, x_term, h, normalise).chunk(3, 1)
        n = torch.tanh(torch.sigmoid(r) * n)
        h = torch.lerp(h, n, torch.sigmoid(u - 1))
        return h, (h,)


class ByHand(nn.Module):
    """A loop over time around one of the functions below, with the layer's weights."""

    def __init__(self, layer: rnnorm.Recurrent, step: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.layer, self.one_step = layer, step

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        w, heads, outputs = self.layer, self.layer.cell.heads, []
        H, weight = w.hidden_size, w.weight_hh_l0.T
        if heads > 1:
            blocks = w.weight_hh_l0.view(-1, heads, H // heads, H // heads)
            weight = blocks.permute(1, 3, 0, 2).reshape(heads, H // heads, -1)
        # layer norm has the bias after it
        bias = None if w.norm else w.bias_ih_l0 + w.bias_hh_l0
        state = (x.new_zeros(x.size(1), H),) * len(w.cell.states)
        for x_term in linear(x, w.weight_ih_l0, bias):
            h_term = self.product(state[0], weight)
            state = self.one_step(w, x_term, h_term, *state)
            outputs.append(state[0])
        return torch.stack(outputs), state[0]

    @staticmethod
    def product(h: Tensor, weight: Tensor) -> Tensor:
        if weight.dim() == 2:
            return h @ weight
        heads, units, _ = weight.shape
        terms = h.view(-1, heads, units).transpose(0, 1) @ weight
        return terms.unflatten(2, (-1, units)).permute(1, 2, 0, 3).flatten(1)


def minimal_gated_unit(w, x_term, h_term, h):
    (x_f, x_n), (h_f, h_n) = x_term.chunk(2, 1), h_term.chunk(2, 1)
    f = torch.sigmoid(x_f + h_f)
    return (torch.lerp(h, torch.tanh(x_n + f * h_n), f),)


def slstm(w, x_term, h_term, h, c, n, m):
    i, f, z, o = (x_term + h_term).chunk(4, 1)
    f = logsigmoid(f) + m
    m = torch.maximum(f, i)
    i, f = torch.exp(i - m), torch.exp(f - m)
    c, n = f * c + i * torch.tanh(z), f * n + i
    return torch.sigmoid(o) * c / n, c, n, m


def dreamer(w, x_term, h_term, h):
    bias = w.bias_ih_l0 + w.bias_hh_l0
    z = layer_norm(x_term + h_term, x_term.shape[1:], w.gamma_joint_l0, bias, w.norm.eps)
    r, n, u = z.chunk(3, 1)
    n = torch.tanh(torch.sigmoid(r) * n)
    return (torch.lerp(h, n, torch.sigmoid(u - 1)),)


def time_rivals(rivals: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return each rival's median time in ms, taken in turns."""
    for run in rivals.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in rivals}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 5:
        for name, run in rivals.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * median(each) for name, each in times.items()}


def call(model: nn.Module, x: Tensor, training: bool, backend: str = "") -> Callable[[], object]:
    """Return a training step's forward and backward pass, or an evaluation."""

    def run() -> None:
        with torch.set_grad_enabled(training):
            output = model(x)[0]
            if training:
                output.sum().backward()
                model.zero_grad()

    def forced() -> None:
        with rnnorm.use_backend(backend):
            run()

    return forced if backend else run


def main() -> None:
    """Print a line for each cell, norm and mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shape",
        type=int,
        nargs=4,
        default=[100, 32, 64, 256],
        metavar="N",
        help="steps, rows, inputs, units",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each line")
    parser.add_argument(
        "--autocast", action="store_true", help="to bfloat16, and without the loops by hand"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):
        beside_built_in(options.shape, options.seconds)
    if options.autocast:
        beside_float32(options.seconds)
    else:
        beside_loops(options.shape, options.seconds)


def beside_built_in(shape: list[int], seconds: float) -> None:
    """Time layers that are compiled as cells of one's own beside the built-in ones."""
    T, B, features, units = shape
    x = torch.randn(T, B, features)
    pairs = {
        "LSTM": (rnnorm.LSTM, partial(rnnorm.Recurrent, LSTM())),
        "GRU": (rnnorm.GRU, partial(rnnorm.Recurrent, GRU())),
        "GRU, reset before": (rnnorm.GRU, partial(rnnorm.GRU, reset_after=False)),
    }
    for norm in (None, "batch", "layer"):
        for name, pair in pairs.items():
            built_in, mine = (make(features, units, norm=norm, initial_noise=0.0) for make in pair)
            for training in (True, False):
                for model in (built_in, mine):
                    model.train(training or norm is None)
                # without a norm torch's own operators would run
                backend = "" if norm else "cpu"
                taken = time_rivals(
                    {
                        "built in": call(built_in, x, training, backend),
                        "own": call(mine, x, training),
                    },
                    seconds,
                )
                ratio = taken["own"] / taken["built in"]
                print(
                    f"{name:18}{norm or 'none':8}{'train' if training else 'eval':7}"
                    f"built in {taken['built in']:8.2f} ms  own {taken['own']:8.2f} ms  "
                    f"ratio {ratio:.3f}",
                    flush=True,
                )


def beside_float32(seconds: float) -> None:
    """Time a cell with heads under autocast beside the same in float32."""
    T, B, features, units = 50, 64, 128, 512
    x = torch.randn(T, B, features)
    for norm in (None, "layer"):
        model = rnnorm.Recurrent(SLSTM(), features, units, norm=norm)
        for training in (True, False):
            run = call(model, x, training)
            rivals = {"autocast": torch.autocast("cpu", torch.bfloat16)(run), "float32": run}
            taken = time_rivals(rivals, seconds)
            print(
                f"{'SLSTM':18}{norm or 'none':8}{'train' if training else 'eval':7}"
                f"autocast {taken['autocast']:.2f} ms  float32 {taken['float32']:.2f} ms  "
                f"ratio {taken['autocast'] / taken['float32']:.3f}",
                flush=True,
            )


def beside_loops(shape: list[int], seconds: float) -> None:
    """Time the cells of docs/own-cell.md beside the reference kernel and a loop by hand."""
    for cell, step, norm, (T, B, features, units) in (
        (MinimalGatedUnit(), minimal_gated_unit, None, shape),
        (SLSTM(), slstm, None, (64, 16, 512, 512)),
        (DreamerGRU(), dreamer, "dreamer", shape),
    ):
        x = torch.randn(T, B, features)
        mine = rnnorm.Recurrent(cell, features, units, norm=norm)
        by_hand = ByHand(mine, step)
        torch.testing.assert_close(by_hand(x)[0], mine(x)[0], rtol=0, atol=1e-4)
        for training in (True, False):
            taken = time_rivals(
                {
                    "own": call(mine, x, training),
                    "reference": call(mine, x, training, "reference"),
                    "by hand": call(by_hand, x, training),
                },
                seconds,
            )
            print(
                f"{cell.name:17}{'train' if training else 'eval':7}"
                + "  ".join(f"{name} {ms:.2f} ms" for name, ms in taken.items()),
                flush=True,
            )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
