"""The arithmetic of a frozen layer in a stream, in float and in 8 bits, from its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.layers.gru import GRU
from rnnorm.layers.lstm import LSTM
from rnnorm.layers.normalised_module import NormalisedModule
from rnnorm.layers.recurrent_dropout import Zoneout
from rnnorm.layers.rnn import RNN
from rnnorm.layers.stateful import Stateful
from rnnorm.norm.moments import scale_of
from rnnorm.norm.spec import CELL_SITES, BatchNorm, LayerNorm, RMSNorm, RowNorm

# levels of an 8-bit number on either side of zero
LEVELS = 127


class Matrix(NamedTuple):
    """A product ``W x + b``.

    Args:
        weight: ``(rows, columns)``.
        bias: ``(rows,)``, or None if nothing is added.
    """

    weight: Tensor
    bias: Tensor | None


class Steps(NamedTuple):
    """A batch-normalised site: ``z * scale + shift``.

    Args:
        scale: ``(R, F)``, a row for each step; the last row serves all later steps.
        shift: as ``scale``.
    """

    scale: Tensor
    shift: Tensor

    def apply(self, z: Tensor, t: int) -> Tensor:
        """Return the normalised term of step ``t``."""
        row = min(t, len(self.scale) - 1)
        return z * self.scale[row].to(z.dtype) + self.shift[row].to(z.dtype)


class Rows(NamedTuple):
    """A site that is normalised by the statistics of each row.

    Args:
        norm: its spec.
        widths: widths of the blocks that each have their own statistics.
        gamma: ``(F,)``.
        beta: ``(F,)``, or None if nothing is added.
    """

    norm: RowNorm
    widths: list[int]
    gamma: Tensor
    beta: Tensor | None

    def apply(self, z: Tensor, t: int) -> Tensor:
        """Return the normalised term, which does not depend on the step."""
        beta = None if self.beta is None else self.beta.to(z.dtype)
        return self.norm.normalise_rows(z, self.widths, self.gamma.to(z.dtype), beta)


class Layer(NamedTuple):
    """One layer of a stream.

    Args:
        ih: the product with the frame.
        hh: the product with h.
        sites: the sites that are not folded into the two products.
    """

    ih: Matrix
    hh: Matrix
    sites: Mapping[str, Steps | Rows]


class Stream(NamedTuple):
    """Layers that read one frame after the other, in float64.

    Args:
        cell: the equations of a step.
        units: units H of each layer.
        layers: the layers from the first on.
        first: ``(num_layers, H)`` for each state, if initial states were learned.
        linear: what is applied to the output of the last layer, if anything is.
    """

    cell: Cell
    units: int
    layers: list[Layer]
    first: Mapping[str, Tensor]
    linear: Matrix | None


def check_layer(layer: object) -> None:
    """Check that a stream in C computes what a layer does.

    Raises:
        TypeError: if it is not an RNN, LSTM or GRU of rnnorm.
        ValueError: if it has an option that a stream in C has not.
    """
    if not isinstance(layer, RNN | LSTM | GRU):
        kind = type(layer)
        remedy = "give the layer alone, and a torch.nn.Linear behind it as linear="
        if isinstance(layer, Stateful):
            remedy = "give its layer"
        elif isinstance(layer, NormalisedModule):
            remedy = "there is no other stream in C; rnnorm.export.onnx takes it"
        elif isinstance(layer, torch.nn.RNNBase):
            remedy = "rnnorm.convert.torch_nn makes one from its state_dict"
        raise TypeError(
            f"layer must be an RNN, LSTM or GRU of rnnorm, got {kind.__module__}."
            f"{kind.__qualname__}: {remedy}"
        )
    peephole = getattr(layer.cell, "peephole", None)
    reset_after = getattr(layer.cell, "reset_after", True)
    dropout, learned = layer.recurrent_dropout, layer.learn_initial_state
    options = {
        "bidirectional=True": layer.bidirectional,
        f"proj_size={layer.proj_size}": layer.proj_size,
        f"peephole={peephole!r}": peephole,
        f"reset_after={reset_after!r}": reset_after is not True,
        f"learn_initial_state={learned!r}": learned == "from_input",
        # other kinds do nothing in evaluation
        f"recurrent_dropout={dropout!r}": isinstance(dropout, Zoneout) and dropout.rates(),
    }
    for option, given in options.items():
        if given:
            raise ValueError(
                f"layer must be without {option}, of which there is no stream in C: "
                "rnnorm.export.onnx takes it"
            )
    for site, spec in layer.cell.norms(layer.norm).items():
        if type(spec) not in (BatchNorm, LayerNorm, RMSNorm):
            raise ValueError(
                f"norm.{site} must be a BatchNorm, LayerNorm or RMSNorm, got {spec}: there is no "
                "other norm in C"
            )


@torch.no_grad()
def read(layer: Any, linear: nn.Linear | None = None) -> Stream:
    """Read a frozen layer, on the CPU, as what its stream computes.

    Batch normalisation with one row of statistics is multiplied into the weights.

    Args:
        layer: a frozen layer in float64 that ``check_layer`` takes.
        linear: what is applied to its output, in float64.
    """
    cell: Cell = layer.cell
    suffixes = [f"_l{k}" for k in range(layer.num_layers)]
    folded = []
    for site, spec in cell.norms(layer.norm).items():
        if isinstance(spec, BatchNorm) and site not in CELL_SITES:
            lengths = [len(getattr(layer, f"population_{site}{s}")) for s in suffixes]
            folded += [site] * (max(lengths) == 1)
    learned = cell.states if layer.learn_initial_state else ()
    return Stream(
        cell,
        layer.hidden_size,
        [_read_layer(layer, suffix, folded) for suffix in suffixes],
        {name: getattr(layer, f"{name}_0") for name in learned},
        None if linear is None else Matrix(linear.weight, linear.bias),
    )


def _read_layer(layer: Any, suffix: str, folded: list[str]) -> Layer:
    cell: Cell = layer.cell
    norms = cell.norms(layer.norm)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    found: list[Any] = [getattr(layer, name + suffix, None) for name in names]
    weights = Weights(*found)
    shifts = cell.shifts(weights, tuple(norms))
    products = {"input": weights.weight_ih, "recurrent": weights.weight_hh}
    sites: dict[str, Steps | Rows] = {}
    for site, spec in norms.items():
        gamma = getattr(layer, f"gamma_{site}{suffix}")
        shift = getattr(layer, f"beta_{site}{suffix}") if site in CELL_SITES else shifts.get(site)
        if isinstance(spec, RowNorm):
            sites[site] = Rows(spec, cell.widths(site, layer.hidden_size, spec), gamma, shift)
            shifts.pop(site, None)
            continue
        population = getattr(layer, f"population_{site}{suffix}")
        scale = scale_of(gamma, population.var, spec.eps)
        shift = (0.0 if shift is None else shift) - population.mean * scale
        if site not in folded:
            sites[site] = Steps(scale, shift)
            shifts.pop(site, None)
            continue
        # the joint site is the sum of both products
        for each in ("input", "recurrent") if site == "joint" else (site,):
            products[each] = scale[0].unsqueeze(1) * products[each]
        shifts[site] = shift[0]
    # one of the two products has the shift of their sum
    bias = shifts.get("joint", shifts.get("input"))
    return Layer(
        Matrix(products["input"], bias),
        Matrix(products["recurrent"], shifts.get("recurrent")),
        sites,
    )


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row of values to 8 bits, symmetrically, and return its scale too.

    Args:
        values: ``(..., N)``.

    Returns:
        whole numbers from -127 to 127, and the scale ``(..., 1)`` that multiplies them.
    """
    scale = values.abs().amax(-1, keepdim=True) / LEVELS
    return torch.where(scale > 0, values / scale, 0).round(), scale


@torch.no_grad()
def run(stream: Stream, x: Tensor, quantised: bool = False) -> Tensor:
    """Run a stream over sequences from their first frame on.

    Args:
        stream: what is computed.
        x: ``(T, B, I)``, in the dtype of the computation.
        quantised: whether the factors of each product are rounded to 8 bits.

    Returns:
        the outputs ``(T, B, O)``.
    """
    for k, layer in enumerate(stream.layers):
        state: State = tuple(
            [
                stream.first[name][k].to(x.dtype).expand(x.size(1), -1)
                if stream.first
                else x.new_zeros(x.size(1), stream.units)
                for name in stream.cell.states
            ]
        )
        x = _run_layer(stream.cell, layer, x, state, quantised)
    return x if stream.linear is None else _product(stream.linear, x, quantised)


def _run_layer(cell: Cell, layer: Layer, x: Tensor, state: State, quantised: bool) -> Tensor:
    weight_hh = _rounded(layer.hh.weight.to(x.dtype), quantised)
    weights = Weights(layer.ih.weight, weight_hh)
    outputs = []
    for t, x_term in enumerate(_product(layer.ih, x, quantised)):

        def normalise(site: str, z: Tensor, t: int = t) -> Tensor:
            if site == "hidden":
                return _rounded(z, quantised)
            if site == "recurrent" and layer.hh.bias is not None:
                z = z + layer.hh.bias.to(z.dtype)
            return layer.sites[site].apply(z, t) if site in layer.sites else z

        output, state = cell.step(weights, normalise("input", x_term), state, normalise, t)
        outputs.append(output)
    return torch.stack(outputs)


def _product(matrix: Matrix, x: Tensor, quantised: bool) -> Tensor:
    weight, x = (_rounded(factor.to(x.dtype), quantised) for factor in (matrix.weight, x))
    return nn.functional.linear(x, weight, None if matrix.bias is None else matrix.bias.to(x.dtype))


def _rounded(values: Tensor, quantised: bool) -> Tensor:
    """Return values as a product in 8 bits sees them, if that is asked for."""
    if not quantised:
        return values
    whole, scale = quantise(values)
    return whole * scale
