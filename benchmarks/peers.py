"""A training step of a layer-normalised LSTM, as other libraries run it, ÷ rnnorm's fused kernel.

    python benchmarks/peers.py
    python benchmarks/peers.py --shape 35x20x650x650 --seconds 120

The equation is that of Ba et al. 2016. Peers are a loop over time by hand, torch.jit.script of it
(as PyTorch's fastrnns), torch.compile of its step and, where steps are few, of the loop; jax.jit of
lax.scan; a cell in Keras's RNN on JAX. Two layers without a norm stand beside them. Outputs and
gradients are compared with the reference kernel's before they are timed. All run in turn, several
steps of each where steps are short, in one process that keeps to one core.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

import rnnorm
from rnnorm.experiments.bench.layers import Shape, on_backend, read_shape, run_layer, verify
from rnnorm.experiments.bench.record import describe, machine
from rnnorm.experiments.bench.timing import interleave, torch_threads

SHAPES = [
    Shape(100, 32, 40, 250),
    Shape(50, 64, 128, 512),
    Shape(64, 16, 512, 512),
    Shape(6, 3, 4, 8),
]
#: torch.compile unrolls a loop over time, so its time to compile grows with the steps
LONGEST_COMPILED = 6
#: seconds of rnnorm in each turn, at least
TURN = 0.01
EPS = 1e-5


class Peer(NamedTuple):
    """A training step, and how its result is read.

    Attributes:
        run: runs the step.
        read: takes what ``run`` returns to the output and the gradients by rnnorm's names.
        reference: the layer of ours with the same equation, None for the layer with the norm.
    """

    run: Callable[[], Any]
    read: Callable[[Any], dict[str, Tensor]] = dict
    reference: nn.RNNBase | None = None

    def result(self) -> dict[str, Tensor]:
        """Run the step and read its result."""
        return self.read(self.run())


def one_step(
    x_term: Tensor,
    h: Tensor,
    c: Tensor,
    weight_hh: Tensor,
    gamma_recurrent: Tensor,
    gamma_cell: Tensor,
    beta_cell: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run a step of Ba et al. 2016, eq. 20-22; the biases are in the input term."""
    gates = x_term + layer_norm(h @ weight_hh.t(), gamma_recurrent.shape, gamma_recurrent)
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * layer_norm(c, gamma_cell.shape, gamma_cell, beta_cell).tanh(), c


scripted_step = torch.jit.script(one_step)


@torch.jit.script
def scripted_loop(
    x_terms: Tensor,
    weight_hh: Tensor,
    gamma_recurrent: Tensor,
    gamma_cell: Tensor,
    beta_cell: Tensor,
) -> Tensor:
    """Run the loop over time that TorchScript compiles."""
    h = torch.zeros_like(x_terms[0, :, : beta_cell.size(0)])
    c = h
    outputs: list[Tensor] = []
    for x_term in x_terms.unbind(0):
        h, c = scripted_step(x_term, h, c, weight_hh, gamma_recurrent, gamma_cell, beta_cell)
        outputs.append(h)
    return torch.stack(outputs)


def loop(
    step: Callable[..., tuple[Tensor, Tensor]], x_terms: Tensor, *parameters: Tensor
) -> Tensor:
    """Run a loop over time in Python."""
    h = c = torch.zeros_like(x_terms[0, :, : parameters[-1].size(0)])
    outputs = []
    for x_term in x_terms.unbind(0):
        h, c = step(x_term, h, c, *parameters)
        outputs.append(h)
    return torch.stack(outputs)


def by_hand(lstm: nn.RNNBase, x: Tensor, run: Callable[..., Tensor]) -> dict[str, Tensor]:
    """Run a loop with the parameters of a layer; return the output and their gradients."""
    of = {name.removesuffix("_l0"): parameter for name, parameter in lstm.named_parameters()}
    x_terms = layer_norm(x @ of["weight_ih"].t(), of["gamma_input"].shape, of["gamma_input"])
    x_terms = x_terms + (of["bias_ih"] + of["bias_hh"])
    names = ("weight_hh", "gamma_recurrent", "gamma_cell", "beta_cell")
    output = run(x_terms, *[of[name] for name in names])
    grads = torch.autograd.grad(output.sum(), list(of.values()))
    return {"output": output.detach(), **{f"{n}_l0": g for n, g in zip(of, grads, strict=True)}}


def with_torch(lstm: nn.RNNBase, x: Tensor) -> dict[str, Peer]:
    """Return the loop by hand, and what torch compiles of it."""
    # a function compiled for one shape would be compiled for any at the next
    torch.compiler.reset()
    compiled = partial(torch.compile, dynamic=False)
    runs: dict[str, Callable[..., Tensor]] = {
        "loop by hand": partial(loop, one_step),
        "torch.jit.script of the loop": scripted_loop,
        "torch.compile of the step": partial(loop, compiled(one_step)),
    }
    if len(x) <= LONGEST_COMPILED:
        runs["torch.compile of the loop"] = compiled(partial(loop, one_step))
    return {name: Peer(partial(by_hand, lstm, x, run)) for name, run in runs.items()}


def with_jax(lstm: nn.RNNBase, x: Tensor) -> dict[str, Peer]:
    """Return a scan over time that JAX differentiates and compiles, with weights as in Flax."""
    import jax
    import jax.numpy as jnp
    from jax import lax, nn

    def normalise(z: Any, gamma: Any) -> Any:
        return nn.standardize(z, epsilon=EPS) * gamma

    def loss(of: dict[str, Any], x: Any) -> tuple[Any, Any]:
        def step(state: tuple[Any, Any], x_term: Any) -> tuple[tuple[Any, Any], Any]:
            h, c = state
            gates = x_term + normalise(h @ of["weight_hh_l0"], of["gamma_recurrent_l0"])
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * nn.tanh(g)
            z = normalise(c, of["gamma_cell_l0"]) + of["beta_cell_l0"]
            h = nn.sigmoid(o) * nn.tanh(z)
            return (h, c), h

        x_terms = normalise(x @ of["weight_ih_l0"], of["gamma_input_l0"])
        x_terms = x_terms + (of["bias_ih_l0"] + of["bias_hh_l0"])
        first = jnp.zeros((x.shape[1], of["beta_cell_l0"].size), x.dtype)
        output = lax.scan(step, (first, first), x_terms)[1]
        return output.sum(), output

    of = {name: jnp.asarray(as_array(value)) for name, value in lstm.named_parameters()}
    frames = jnp.asarray(x.numpy())
    gradients = jax.jit(jax.grad(loss, has_aux=True))

    def read(result: tuple[dict[str, Any], Any]) -> dict[str, Tensor]:
        grads, output = result
        return {"output": as_tensor(output), **{n: as_tensor(g).t() for n, g in grads.items()}}

    return {"jax.jit of lax.scan": Peer(lambda: jax.block_until_ready(gradients(of, frames)), read)}


def with_keras(lstm: nn.RNNBase, x: Tensor) -> dict[str, Peer]:
    """Return Keras's RNN over a cell with its LayerNormalization, compiled by JAX."""
    import jax
    import jax.numpy as jnp
    from keras import layers, ops

    class Cell(layers.Layer):  # type: ignore[misc]
        def __init__(self, units: int) -> None:
            super().__init__()
            self.units, self.state_size = units, [units, units]
            norms = [layers.LayerNormalization(epsilon=EPS, center=c) for c in (False, False, True)]
            self.input_norm, self.recurrent_norm, self.cell_norm = norms

        def build(self, shape: tuple[int, ...]) -> None:
            gates = 4 * self.units
            self.kernel = self.add_weight(shape=(shape[-1], gates))
            self.recurrent_kernel = self.add_weight(shape=(self.units, gates))
            self.bias = self.add_weight(shape=(gates,))
            self.input_norm.build((None, gates))
            self.recurrent_norm.build((None, gates))
            self.cell_norm.build((None, self.units))

        def call(self, x: Any, states: list[Any]) -> tuple[Any, list[Any]]:
            h, c = states
            gates = self.input_norm(ops.matmul(x, self.kernel))
            gates += self.recurrent_norm(ops.matmul(h, self.recurrent_kernel)) + self.bias
            i, f, g, o = ops.split(gates, 4, axis=-1)
            c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
            h = ops.sigmoid(o) * ops.tanh(self.cell_norm(c))
            return h, [h, c]

    cell = Cell(lstm.hidden_size)
    rnn = layers.RNN(cell, return_sequences=True)
    frames = jnp.asarray(x.transpose(0, 1).numpy())
    rnn.build(frames.shape)
    values = {name: as_array(value) for name, value in lstm.named_parameters()}
    values["bias_ih_l0"] += values.pop("bias_hh_l0")
    weights = {
        "weight_ih_l0": cell.kernel,
        "weight_hh_l0": cell.recurrent_kernel,
        "bias_ih_l0": cell.bias,
        "gamma_input_l0": cell.input_norm.gamma,
        "gamma_recurrent_l0": cell.recurrent_norm.gamma,
        "gamma_cell_l0": cell.cell_norm.gamma,
        "beta_cell_l0": cell.cell_norm.beta,
    }
    for name, weight in weights.items():
        weight.assign(values[name])
    names = {id(weight): name for name, weight in weights.items()}
    order = [names[id(weight)] for weight in rnn.trainable_variables]

    def loss(trainable: list[Any], fixed: list[Any], x: Any) -> tuple[Any, Any]:
        output, _ = rnn.stateless_call(trainable, fixed, x)
        return output.sum(), output

    gradients = jax.jit(jax.grad(loss, has_aux=True))
    trainable, fixed = (
        [v.value for v in vs] for vs in (rnn.trainable_variables, rnn.non_trainable_variables)
    )

    def read(result: tuple[list[Any], Any]) -> dict[str, Tensor]:
        grads, output = result
        read = {name: as_tensor(g).t() for name, g in zip(order, grads, strict=True)}
        return {
            "output": as_tensor(output).transpose(0, 1),
            **read,
            "bias_hh_l0": read["bias_ih_l0"],
        }

    return {
        "Keras on JAX": Peer(
            lambda: jax.block_until_ready(gradients(trainable, fixed, frames)), read
        )
    }


def with_torchrecurrent(lstm: nn.RNNBase, x: Tensor) -> dict[str, Peer]:
    """Return torchrecurrent's LSTM with peepholes, as none of its cells has a layer norm."""
    import torchrecurrent

    layer = torchrecurrent.PeepholeLSTM(lstm.input_size, lstm.hidden_size)
    ours = rnnorm.LSTM(lstm.input_size, lstm.hidden_size, peephole="all")

    def named(parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return parameters or their gradients by the names that rnnorm gives them."""
        found = {f"{name.removeprefix('cells.0.')}_l0": part for name, part in parts.items()}
        peepholes = found.pop("weight_ph_l0").chunk(3)
        names = ("weight_ci_l0", "weight_cf_l0", "weight_co_l0")
        return {**found, **dict(zip(names, peepholes, strict=True))}

    def read(result: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"output": result.pop("output"), **named(result)}

    ours.load_state_dict(named(layer.state_dict()))
    return {"torchrecurrent, no norm": Peer(partial(run_layer, layer, x, True), read, ours)}


def as_array(parameter: Tensor) -> Any:
    """Return a parameter as an array, a matrix as (in, out)."""
    return parameter.detach().t().contiguous().numpy().copy()


def as_tensor(array: Any) -> Tensor:
    """Return an array of JAX as a tensor."""
    return torch.as_tensor(np.array(array))


#: builders of peers, with the packages that they import
BUILDERS: list[tuple[Callable[[nn.RNNBase, Tensor], dict[str, Peer]], tuple[str, ...]]] = [
    (with_torch, ()),
    (with_jax, ("jax",)),
    (with_keras, ("jax", "keras")),
    (with_torchrecurrent, ("torchrecurrent",)),
]
EXTRAS = ("jax", "keras", "torchrecurrent")


def build(shape: Shape) -> dict[str, Callable[[], Any]]:
    """Return the step of every peer by name, after comparing its results with the reference's."""
    torch.manual_seed(0)
    x = torch.randn(shape[:3])
    lstm = rnnorm.LSTM(shape.I, shape.H, norm="layer")
    plain = nn.LSTM(shape.I, shape.H)
    peers = {"rnnorm": Peer(partial(run_layer, lstm, x, True))}
    for peers_with, needed in BUILDERS:
        if all(map(find_spec, needed)):
            peers |= peers_with(lstm, x)
    peers["torch.nn.LSTM, no norm"] = Peer(partial(run_layer, plain, x, True), reference=plain)
    for name, peer in peers.items():
        layer = peer.reference or lstm
        references = [
            partial(on_backend, "reference", partial(run_layer, same, data, True))
            for same, data in ((layer, x), (deepcopy(layer).double(), x.double()))
        ]
        verify(f"{shape} {name}", peer.result, *references)
    return {name: peer.run for name, peer in peers.items()}


def several(step: Callable[[], Any], count: int) -> None:
    """Run a step several times."""
    for _ in range(count):
        step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shape", type=read_shape, action="append", help="TxBxIxH")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each shape")
    args = parser.parse_args()
    # read when JAX and Keras are imported
    os.environ |= {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    here = [name for name in EXTRAS if find_spec(name)]
    for name in EXTRAS:
        if name not in here:
            print(f"left out: {name} is not installed: pip install {name}")
    with torch_threads(1):
        print(describe(machine() | {name: metadata.version(name) for name in here}))
        for shape in args.shape or SHAPES:
            steps = build(shape)
            # a single short step between those of others would find its code and data out of cache
            once = interleave({"rnnorm": steps["rnnorm"]}, 0.1)["rnnorm"].seconds
            count = ceil(TURN / once)
            turns = {name: partial(several, step, count) for name, step in steps.items()}
            for name, timing in interleave(turns, args.seconds).items():
                ms = 1e3 * timing.seconds / count
                print(f"{shape!s:15} {name:28} {ms:9.2f} ms {timing}", flush=True)


if __name__ == "__main__":
    main()
