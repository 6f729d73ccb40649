"""Two cells as a user may write them, without the options of the package's own."""

import torch

import rnnorm


class LiGRU(rnnorm.Cell):
    """A GRU without reset gate, with a rectifier (Ravanelli et al. 2018)."""

    gates = (2,)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        h = torch.lerp(torch.relu(n), h, torch.sigmoid(z))
        return h, (h,)


class IndRNN(rnnorm.Cell):
    """A cell whose units see themselves alone, by a vector of its own (Li et al. 2018)."""

    sites = ("input", "recurrent")

    def weights(self, input_size, hidden_size, bias):
        shapes = {"weight_ih": (hidden_size, input_size), "u": (hidden_size,)}
        return shapes | ({"bias_ih": (hidden_size,)} if bias else {})

    def units(self, weights):
        return weights.own["u"].size(0)

    def step(self, weights, x_term, state, normalise, t):
        (h,) = state
        h = torch.relu(x_term + normalise("recurrent", weights.own["u"] * h))
        return h, (h,)
