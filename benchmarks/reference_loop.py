"""A layer on the reference kernel, or another, ÷ the same equations as a loop over time by hand.

    python benchmarks/reference_loop.py
    python benchmarks/reference_loop.py LSTM BN-LSTM --shape 100x32x40x100 --seconds 20
    python benchmarks/reference_loop.py MI-RNN --backend cpu

A loop by hand is what an experienced user of PyTorch writes: one product for the input terms of all
steps, then a loop of torch's operators, the outputs stacked; rows of different lengths are packed,
and those that have ended are no longer computed. Outputs and gradients are compared before they are
timed. Both run in turn in one process. Steps are forward and backward in training, and forward
without gradients in evaluation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, layer_norm, linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import rnnorm
from rnnorm.experiments.bench.layers import Shape, Step, read_shape, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

SHAPES = [
    Shape(2, 8, 8, 8),
    Shape(100, 32, 40, 100),
    Shape(64, 16, 64, 512),
    Shape(200, 2, 64, 256),
]
State = tuple[Tensor, ...]
#: a step by hand, given x_t's term, t and the states; the output is the first state
HandStep = Callable[..., State]


class Row(NamedTuple):
    """A layer of ours, and its step by hand.

    Attributes:
        layer: makes the layer of an input size and a number of units.
        by_hand: makes the step of the layer's parameters, which have the names of the first layer.
        states: number of states.
        biases: names of the biases that are added to the input terms.
    """

    layer: Callable[[int, int], nn.Module]
    by_hand: Callable[[Any], HandStep]
    states: int = 1
    biases: tuple[str, ...] = ("bias_ih", "bias_hh")


class MinimalGatedUnit(rnnorm.Cell):
    """The minimal gated unit (Zhou et al. 2016), as a user writes it for rnnorm."""

    gates = (2,)

    def step(
        self, weights: Any, x_term: Tensor, state: State, normalise: Any, t: int | Tensor
    ) -> tuple[Tensor, State]:
        """Compute ``f = σ(W_f x + U_f h + b)``, ``h = (1 - f) h + f tanh(W x + U (f h) + b)``."""
        (h,) = state
        x_f, x_n = x_term.chunk(2, 1)
        weight_f, weight_n = weights.own["weight_f"], weights.own["weight_n"]
        f = torch.sigmoid(x_f + self.product(h, weight_f))
        h = torch.lerp(h, torch.tanh(x_n + self.product(f * h, weight_n)), f)
        return h, (h,)

    def prepare(self, weights: Any) -> Any:
        """Split ``weight_hh`` into forget gate and candidate."""
        weight_f, weight_n = weights.weight_hh.chunk(2)
        return weights._replace(own={"weight_f": weight_f, "weight_n": weight_n})


def lstm(p: Any) -> HandStep:
    weight = p.weight_hh.t()

    def step(x_term: Tensor, t: int, h: Tensor, c: Tensor) -> State:
        i, f, g, o = (x_term + h @ weight).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return step


def peephole_lstm(p: Any) -> HandStep:
    weight = p.weight_hh.t()

    def step(x_term: Tensor, t: int, h: Tensor, c: Tensor) -> State:
        i, f, g, o = (x_term + h @ weight).chunk(4, 1)
        i, f = torch.sigmoid(i + p.weight_ci * c), torch.sigmoid(f + p.weight_cf * c)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o + p.weight_co * c) * torch.tanh(c), c

    return step


def layer_norm_lstm(p: Any) -> HandStep:
    weight = p.weight_hh.t()
    bias = p.bias_ih + p.bias_hh
    rows, units = p.gamma_input.shape, p.gamma_cell.shape

    def step(x_term: Tensor, t: int, h: Tensor, c: Tensor) -> State:
        gates = layer_norm(x_term, rows, p.gamma_input, bias)
        gates = gates + layer_norm(h @ weight, rows, p.gamma_recurrent)
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(layer_norm(c, units, p.gamma_cell, p.beta_cell)), c

    return step


def batch_norm_lstm(p: Any) -> HandStep:
    weight = p.weight_hh.t()
    bias = p.bias_ih + p.bias_hh

    def normalise(z: Tensor, t: int, site: str, shift: Tensor | None = None) -> Tensor:
        mean, var = p.statistics[site]
        gamma = getattr(p, f"gamma_{site}")
        return batch_norm(z, mean[t], var[t], gamma, shift, p.training, 0.1)

    def step(x_term: Tensor, t: int, h: Tensor, c: Tensor) -> State:
        gates = normalise(x_term, t, "input", bias) + normalise(h @ weight, t, "recurrent")
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(normalise(c, t, "cell", p.beta_cell)), c

    return step


def gru(p: Any) -> HandStep:
    H, weight = p.weight_hh.size(1), p.weight_hh.t()

    def step(x_term: Tensor, t: int, h: Tensor) -> State:
        x_gates, x_n = x_term.split([2 * H, H], 1)
        h_gates, h_n = torch.addmm(p.bias_hh, h, weight).split([2 * H, H], 1)
        r, z = torch.sigmoid(x_gates + h_gates).chunk(2, 1)
        n = torch.tanh(x_n + r * h_n)
        return (n + z * (h - n),)

    return step


def gru_reset_before(p: Any) -> HandStep:
    H = p.weight_hh.size(1)
    weight, weight_n = p.weight_hh[: 2 * H].t(), p.weight_hh[2 * H :].t()

    def step(x_term: Tensor, t: int, h: Tensor) -> State:
        x_gates, x_n = x_term.split([2 * H, H], 1)
        r, z = torch.sigmoid(x_gates + h @ weight).chunk(2, 1)
        n = torch.tanh(x_n + (r * h) @ weight_n)
        return (n + z * (h - n),)

    return step


def rnn(p: Any) -> HandStep:
    weight = p.weight_hh.t()
    return lambda x_term, t, h: (torch.tanh(x_term + h @ weight),)


def minimal_gated_unit(p: Any) -> HandStep:
    weight_f, weight_n = (weight.t() for weight in p.weight_hh.chunk(2))

    def step(x_term: Tensor, t: int, h: Tensor) -> State:
        x_f, x_n = x_term.chunk(2, 1)
        f = torch.sigmoid(x_f + h @ weight_f)
        n = torch.tanh(x_n + (f * h) @ weight_n)
        return (h + f * (n - h),)

    return step


def multiplicative_rnn(p: Any) -> HandStep:
    weight = p.weight_hh.t()
    bias = p.bias_ih + p.bias_hh

    def step(x_term: Tensor, t: int, h: Tensor) -> State:
        h_term = h @ weight
        both = p.alpha * x_term * h_term + p.beta_1 * h_term + p.beta_2 * x_term
        return (torch.tanh(both + bias),)

    return step


ROWS = {
    "LSTM": Row(rnnorm.LSTM, lstm, 2),
    "GRU": Row(rnnorm.GRU, gru, biases=("bias_ih",)),
    "RNN": Row(rnnorm.RNN, rnn),
    "MGU": Row(partial(rnnorm.Recurrent, MinimalGatedUnit()), minimal_gated_unit),
    "LN-LSTM": Row(partial(rnnorm.LSTM, norm="layer"), layer_norm_lstm, 2, ()),
    "BN-LSTM": Row(partial(rnnorm.LSTM, norm="batch", initial_noise=0.0), batch_norm_lstm, 2, ()),
    "MI-RNN": Row(rnnorm.MIRNN, multiplicative_rnn, biases=()),
    "GRU, reset before": Row(partial(rnnorm.GRU, reset_after=False), gru_reset_before),
    "LSTM, peepholes": Row(partial(rnnorm.LSTM, peephole="all"), peephole_lstm, 2),
}


def by_hand(row: Row, p: Any, x: Tensor, lengths: Tensor | None) -> Tensor:
    """Run a loop over time by hand, and return its output ``(T, B, H)``."""
    biases = [getattr(p, name) for name in row.biases]
    bias = sum(biases[1:], biases[0]) if biases else None
    h = x.new_zeros(x.size(1), p.weight_hh.size(1))
    state: State = (h,) * row.states
    step, outputs = row.by_hand(p), []
    if lengths is None:
        for t, x_term in enumerate(linear(x, p.weight_ih, bias).unbind(0)):
            state = step(x_term, t, *state)
            outputs.append(state[0])
        return torch.stack(outputs)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    terms = linear(packed.data, p.weight_ih, bias).split(packed.batch_sizes.tolist())
    for t, x_term in enumerate(terms):
        state = step(x_term, t, *(s[: len(x_term)] for s in state))
        outputs.append(state[0])
    return pad_packed_sequence(PackedSequence(torch.cat(outputs), *packed[1:]))[0]


def parameters_by_hand(layer: nn.Module, training: bool) -> SimpleNamespace:
    """Return a layer's parameters, and copies of its statistics, by the names of a loop by hand."""
    p = SimpleNamespace(training=training, statistics={})
    for name, parameter in layer.named_parameters():
        setattr(p, name.removesuffix("_l0"), parameter)
    for name, population in layer.named_children():
        site = name.removeprefix("population_").removesuffix("_l0")
        p.statistics[site] = population.mean.clone(), population.var.clone()
    return p


def result(run: Callable[[], Tensor], layer: nn.Module, training: bool) -> dict[str, Tensor]:
    """Return the output, and in training the gradients of its sum by the parameters."""
    with torch.set_grad_enabled(training):
        output = run()
    if not training:
        return {"output": output}
    names, parameters = zip(*layer.named_parameters(), strict=True)
    return {
        "output": output,
        **dict(zip(names, torch.autograd.grad(output.sum(), parameters), strict=True)),
    }


def prepare(row: Row, shape: Shape, training: bool) -> dict[str, Step]:
    """Build the step by hand and ours, and verify them."""
    torch.manual_seed(0)
    layer = row.layer(shape.I, shape.H)
    x = torch.randn(shape.T, shape.B, shape.I)
    lengths = None
    if shape.shortest is not None:
        lengths = torch.randint(shape.shortest, shape.T + 1, (shape.B,))
        lengths[:8] = shape.T
    # statistics of all steps
    layer(torch.randn(shape.T, max(2, shape.B), shape.I))
    layer.train(training)
    p = parameters_by_hand(layer, training)
    hand = partial(result, lambda: by_hand(row, p, x, lengths), layer, training)
    ours = partial(result, lambda: layer(x, lengths=lengths)[0], layer, training)
    verify("the loop by hand", hand, ours)
    return {"by hand": hand, "ours": ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all if none")
    parser.add_argument("--shape", type=read_shape, action="append", help="TxBxIxH")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--backend", default="reference", help="the kernel beside the loop by hand")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"{', '.join(unknown)} must be of {', '.join(ROWS)}")
    # chosen once: a choice around each step would be timed
    with torch_threads(args.threads), rnnorm.use_backend(args.backend):
        print(describe(machine()))
        print(f"{'':18} {'shape':16} {'training':>20} {'evaluation':>20}")
        for name in args.rows or ROWS:
            for dense in args.shape or SHAPES:
                ragged = [dense._replace(shortest=max(1, dense.T // 4))] * (dense.B > 8)
                for shape in (dense, *ragged):
                    # statistics of a few rows are too steep to compare gradients
                    if name == "BN-LSTM" and shape.B < 8:
                        continue
                    found = []
                    for training in (True, False):
                        steps = prepare(ROWS[name], shape, training)
                        timings = interleave(steps, args.seconds, clock=args.clock)
                        found.append(str(timings["ours"]))
                    print(f"{name:18} {shape!s:16} {found[0]:>20} {found[1]:>20}", flush=True)


if __name__ == "__main__":
    main()
