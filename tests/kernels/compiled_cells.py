"""Cells as users may write them, which the kernels compile, and the norms they are tried with."""

import functools
from typing import ClassVar

import torch

import rnnorm
from rnnorm import BatchNorm
from rnnorm.cells.gru import GRU
from rnnorm.cells.mirnn import MIRNN


class OwnLSTM(rnnorm.Cell):
    gates = (4,)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell", "carry")
    dropouts = ("hidden", "candidate", "zoneout_h", "zoneout_c")

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        i, f, g, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        g = normalise("candidate", torch.tanh(g))
        c = normalise("carry", torch.sigmoid(f) * c + torch.sigmoid(i) * g)
        h = torch.sigmoid(o) * torch.tanh(normalise("cell", c))
        return h, (h, c)


class OwnGRU(rnnorm.Cell):
    gates = (2, 1)
    sites = ("input", "recurrent")
    dropouts = ("hidden", "candidate", "zoneout_h")

    def shifts(self, weights, sites):
        biases = {"input": weights.bias_ih, "recurrent": weights.bias_hh}
        return {site: bias for site, bias in biases.items() if bias is not None}

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        H = h.size(1)
        term = normalise("recurrent", self.product(normalise("hidden", h), weights.weight_hh))
        r, z = torch.sigmoid(x_term[:, : 2 * H] + term[:, : 2 * H]).chunk(2, 1)
        n = normalise("candidate", torch.tanh(x_term[:, 2 * H :] + r * term[:, 2 * H :]))
        h = torch.lerp(n, h, z)
        return h, (h,)


class Leaky(rnnorm.Cell):
    """An Elman cell with a rate of its own for each unit."""

    bounds: ClassVar = {"rate": (0.2, 0.8)}

    def weights(self, input_size, hidden_size, bias):
        return super().weights(input_size, hidden_size, bias) | {"rate": (hidden_size,)}

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z = self.preactivation(weights, x_term, h, normalise)
        h = h + weights.own["rate"] * (torch.tanh(z) - h)
        return h, (h,)


class SLSTM(rnnorm.Cell):
    """The cell of Beck et al. 2024: four heads, an exponential input gate and four states."""

    gates = (4,)
    states = ("h", "c", "n", "m")
    heads = 4

    def step(self, weights, x_term, state, normalise, t):
        h, c, n, m = state
        i, f, z, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        f = torch.nn.functional.logsigmoid(f) + m
        m = torch.maximum(f, i)
        i, f = torch.exp(i - m), torch.exp(f - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        return h, (h, c, n, m)


class PeepholeLSTM(OwnLSTM):
    """An LSTM whose gates see c by one weight of two gates, and by another of one."""

    sites = ("input", "recurrent", "joint", "cell")
    bounds: ClassVar = {"p": (-1, 1), "q": (-1, 1)}

    def weights(self, input_size, hidden_size, bias):
        own = {"p": (2 * hidden_size,), "q": (hidden_size,)}
        return super().weights(input_size, hidden_size, bias) | own

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        i, f, g, o = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        p_i, p_f = weights.own["p"].chunk(2)
        g = normalise("candidate", torch.tanh(g))
        c = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * g
        seen = normalise("cell", c)
        h = torch.sigmoid(o + weights.own["q"] * seen) * torch.tanh(seen)
        return h, (h, c)


class FarFromZero(rnnorm.Cell):
    """A cell whose state is not zero where its terms are, and has no gradient there."""

    gates = (2,)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        z, g = self.preactivation(weights, x_term, state[0], normalise).chunk(2, 1)
        c = torch.sigmoid(g) + torch.sqrt(z * z)
        h = 0.5 * torch.tanh(normalise("cell", c))
        return h, (h, c)


class ThreeStates(rnnorm.Cell):
    """A cell whose normalised state reads another state, which h reads too, where masks say so."""

    states = ("h", "c", "d")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        h, c, d = state
        z = self.preactivation(weights, x_term, h, normalise)
        c, new = torch.tanh(0.5 * c + 0.5 * d * z), torch.tanh(z + 0.5 * d)
        h = torch.tanh(normalise("cell", c)) + torch.where(
            (d > 0) & ~(z > 1) | (z < -1), 0.3 * d, 0
        )
        return h, (h, c, new)


class Delayed(rnnorm.Cell):
    """A cell whose states move on by one place, and whose h reads all of them as they were."""

    states = ("h", "c", "d")

    def step(self, weights, x_term, state, normalise, t):
        h, c, d = state
        z = self.preactivation(weights, x_term, h, normalise)
        h = torch.tanh(z + 0.5 * c - 0.5 * d)
        return h, (h, state[0], c)


class DelayedLSTM(Delayed):
    """The same beside a normalised state, after which h reads two states as they were."""

    states = ("h", "c", "d", "e")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        h, c, d, e = state
        z = self.preactivation(weights, x_term, h, normalise)
        new = torch.tanh(z + 0.5 * e)
        h = torch.tanh(normalise("cell", new)) * c + d
        return h, (h, new, e, state[0])


class SRU(rnnorm.Cell):
    """The cell of Lei et al. 2018: gates see c by a weight, h is read by nothing."""

    gates = (4,)
    states = ("h", "c")
    sites = ("input", "joint", "cell")

    def weights(self, input_size, hidden_size, bias):
        shapes = {"weight_ih": (4 * hidden_size, input_size), "v": (2 * hidden_size,)}
        return shapes | ({"bias_ih": (4 * hidden_size,)} if bias else {})

    def units(self, weights):
        return weights.own["v"].size(0) // 2

    def step(self, weights, x_term, state, normalise, t):
        _, c = state
        z, f, r, passed = normalise("joint", x_term).chunk(4, 1)
        v_f, v_r = weights.own["v"].chunk(2)
        r = torch.sigmoid(r + v_r * c)
        c = torch.lerp(z, c, torch.sigmoid(f + v_f * c))
        h = torch.lerp(passed, normalise("cell", c), r)
        return h, (h, c)


class MinGRU(rnnorm.Cell):
    """The minimal GRU of Feng et al. 2024, without a recurrent product and with its weight_hh."""

    gates = (2,)
    sites = ("input",)
    dropouts = ("candidate", "zoneout_h")

    def step(self, weights, x_term, state, normalise, t):
        z, n = x_term.chunk(2, 1)
        h = torch.lerp(state[0], normalise("candidate", n), torch.sigmoid(z))
        return h, (h,)


class Crossing(rnnorm.Cell):
    """A cell whose h reads four values beside the normalised state, its term and x."""

    gates = (2, 2)
    states = ("h", "c")
    sites = ("input", "recurrent", "joint", "cell")

    def step(self, weights, x_term, state, normalise, t):
        h, c = state
        a, b, d, e = self.preactivation(weights, x_term, h, normalise).chunk(4, 1)
        c = torch.sigmoid(a) * c + torch.tanh(b) * torch.sigmoid(d)
        seen = normalise("cell", c)
        h = torch.sigmoid(a) * torch.tanh(seen + torch.tanh(b)) + d * torch.exp(-seen * seen) + e
        h = 0.5 * torch.tanh(h)
        return h, (h, c)


class Prepared(rnnorm.Cell):
    """A leaky cell whose matrix has norm 1, and whose rate is between 0 and 1."""

    def weights(self, input_size, hidden_size, bias):
        return super().weights(input_size, hidden_size, bias) | {"raw": (hidden_size,)}

    def prepare(self, weights):
        rate = torch.sigmoid(weights.own["raw"])
        unit = weights.weight_hh / torch.linalg.matrix_norm(weights.weight_hh)
        return weights._replace(weight_hh=unit, own={"rate": rate})

    def step(self, weights, x_term, state, normalise, t):
        # the equations of Leaky, which are compiled once for both
        (h,) = state
        z = self.preactivation(weights, x_term, h, normalise)
        h = h + weights.own["rate"] * (torch.tanh(z) - h)
        return h, (h,)


class TwoProducts(rnnorm.Cell):
    """An LSTM without a forget gate that reads h through one more gate, as a mogrifier does."""

    gates = (1, 3)
    states = ("h", "c")
    sites = ("input", "recurrent", "recurrent_gates")
    dropouts = ("hidden", "candidate", "zoneout_h", "zoneout_c")

    def weights(self, input_size, hidden_size, bias):
        shapes = super().weights(input_size, hidden_size, bias)
        square = (hidden_size, hidden_size)
        return shapes | {"weight_hh": (3 * hidden_size, hidden_size), "weight_q": square}

    def units(self, weights):
        return weights.weight_hh.size(1)

    def blocks(self, site, hidden_size):
        counts = {"recurrent": (1,), "recurrent_gates": (3,)}.get(site, self.gates)
        return [hidden_size * count for count in counts]

    def step(self, weights, x_term, state, normalise, t):
        h, c = normalise("hidden", state[0]), state[1]
        H = h.size(1)
        q = normalise("recurrent", self.product(h, weights.own["weight_q"]))
        h = 2 * torch.sigmoid(x_term[:, :H] + q) * h
        term = normalise("recurrent_gates", self.product(h, weights.weight_hh))
        i, g, o = (x_term[:, H:] + term).chunk(3, 1)
        c = torch.lerp(c, normalise("candidate", torch.tanh(g)), torch.sigmoid(i))
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class MILSTM(rnnorm.Cell):
    """The LSTM of Wu et al. 2016, whose gates have sixteen weights by unit, b among them."""

    gates = (4,)
    states = ("h", "c")
    sites = ("input", "recurrent")

    def weights(self, input_size, hidden_size, bias):
        own = dict.fromkeys(("a", "b1", "b2", "b"), (4 * hidden_size,))
        return super().weights(input_size, hidden_size, False) | own

    def step(self, weights, x_term, state, normalise, t):
        (h, c), own = state, weights.own
        term = normalise("recurrent", self.product(h, weights.weight_hh))
        z = own["a"] * x_term * term + own["b1"] * term + own["b2"] * x_term + own["b"]
        i, f, g, o = z.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


CELLS = {
    "two": TwoProducts,
    "mirnn": MIRNN,
    "milstm": MILSTM,
    "reset": functools.partial(GRU, False),
    "prepared": Prepared,
    "crossing": Crossing,
    "delayed": Delayed,
    "delayed lstm": DelayedLSTM,
    "sru": SRU,
    "mingru": MinGRU,
    "three": ThreeStates,
    "far": FarFromZero,
    "lstm": OwnLSTM,
    "gru": OwnGRU,
    "leaky": Leaky,
    "slstm": SLSTM,
    "peephole": PeepholeLSTM,
}
# not a multiple of the width of vectors, unless heads need it
UNITS = {"slstm": 20}
JOINT = {"input": False, "recurrent": False}
NORMS = {
    "none": None,
    "batch": "batch",
    "sequence": BatchNorm(input="sequence"),
    "layer": "layer",
    "gate": rnnorm.RMSNorm(over="gate"),
    "term": rnnorm.LayerNorm(over="term"),
    "joint": rnnorm.LayerNorm(**JOINT, joint=True),
    "joint term": rnnorm.RMSNorm(**JOINT, joint=True, over="term"),
    "carry": BatchNorm(cell=None, carry="frame"),
}


def layer(kind, norm=None, **options):
    torch.manual_seed(0)
    options = {"dtype": torch.float64, "initial_noise": 0.0} | options
    return rnnorm.Recurrent(CELLS[kind](), 3, UNITS.get(kind, 18), norm=norm, **options)


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
