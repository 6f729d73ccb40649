"""The equations of a step on tiles, and their derivatives, as in ``rnnorm.cells``.

A gate's preactivation is ``x + y``, the finished input term and the finished recurrent term.
"""

import triton
import triton.language as tl

from rnnorm.kernels.triton.tile import tanh


@triton.jit
def activations(x, y, CELL: tl.constexpr):
    """Compute i, f, g, o of an LSTM; r, z, n of a GRU; h of an RNN."""
    if CELL == "LSTM":
        i, f = tl.sigmoid(x[0] + y[0]), tl.sigmoid(x[1] + y[1])
        return i, f, tanh(x[2] + y[2]), tl.sigmoid(x[3] + y[3])
    elif CELL == "GRU":
        r, z = tl.sigmoid(x[0] + y[0]), tl.sigmoid(x[1] + y[1])
        return r, z, tanh(x[2] + r * y[2])
    elif CELL == "RNN_TANH":
        return (tanh(x[0] + y[0]),)
    else:
        z = x[0] + y[0]
        # a maximum would drop nan
        return (tl.where(z < 0, 0.0, z),)


@triton.jit
def advance(a, before, CELL: tl.constexpr):
    """Compute the state that the next step starts from: c of an LSTM, else h."""
    if CELL == "LSTM":
        return a[1] * before + a[0] * a[2]
    elif CELL == "GRU":
        return a[2] + a[1] * (before - a[2])
    else:
        return a[0]


@triton.jit
def retreat(a, y, before, d, d_o, CELL: tl.constexpr):
    """Compute the gradients of x and y, gate by gate, and of ``before`` through ``advance`` alone.

    Args:
        a: the activations.
        y: the recurrent terms.
        before: the state of the step before.
        d: gradient of the state that ``advance`` returns.
        d_o: gradient of an LSTM's preactivation of o.
        CELL: name of the cell.
    """
    if CELL == "LSTM":
        i, f, g = a[0], a[1], a[2]
        x = (d * g * i * (1 - i), d * before * f * (1 - f), d * i * (1 - g * g), d_o)
        return x, x, d * f
    elif CELL == "GRU":
        r, z, n = a[0], a[1], a[2]
        d_n = d * (1 - z) * (1 - n * n)
        d_r, d_z = d_n * y[2] * r * (1 - r), d * (before - n) * z * (1 - z)
        return (d_r, d_z, d_n), (d_r, d_z, d_n * r), d * z
    elif CELL == "RNN_TANH":
        x = (d * (1 - a[0] * a[0]),)
        return x, x, d
    else:
        x = (tl.where(a[0] <= 0, 0.0, d),)
        return x, x, d
