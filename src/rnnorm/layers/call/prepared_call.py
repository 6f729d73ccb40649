"""The struct that a short call of a layer prepares for the calls after it, and how one runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_int64
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from rnnorm.cells.cell import State
from rnnorm.kernels.call_inputs import check_shapes
from rnnorm.kernels.cpu import library
from rnnorm.kernels.cpu.c_struct import (
    MULTIPLIED,
    slots,
    slots_of,
    without_tensors,
    write_addresses,
)
from rnnorm.kernels.cpu.short_passes import ShortPasses
from rnnorm.kernels.cpu.update import fill
from rnnorm.kernels.inputs import LEAVES, PARAMETERS, Inputs, Sites, joined, separated
from rnnorm.kernels.known_cells import CELL_OF_NAME
from rnnorm.kernels.operators import form
from rnnorm.norm.population import BUFFERS

if TYPE_CHECKING:
    from rnnorm.layers.call.known_layer import KnownLayer

# the address says whether memory is of the CPU
form_on_cpu = attrgetter("shape", "dtype")
# evaluation reads no count of rows
EVALUATION_BUFFERS = tuple([name for name in BUFFERS if name != "rows"])
NO_CONSTANTS: list[Tensor | None] = [None] * (len(Inputs._fields) - LEAVES)
# ``Constants.slots`` of each site
_CONSTANTS = [
    tuple(slots_of((f"mean_{site}", f"var_{site}", f"last_{site}", f"step_{site}")))
    for site in Sites._fields
]
# indices, among the leaves, of x and of the two matrices
_MULTIPLIED = [Inputs._fields.index(name) for name in ("x", *PARAMETERS[:2])]
# what a transform of torch.func has left behind has no memory of its own
unwrap_if_dead = torch._C._functorch.unwrap_if_dead


class Constants(NamedTuple):
    """Where a site of the struct gets its constant mean and variance from.

    Args:
        slots: indices in ``c_struct.slots`` of the addresses of both, the number of the last step
            with constants of its own, and the elements from one step's to the next.
        mean: address of the first row of the mean.
        var: address of the first row of the variance.
        features: elements of a row.
        row: bytes of a row.
    """

    slots: tuple[int, ...]
    mean: int
    var: int
    features: int
    row: int

    def write(self, fields: Any, start: int, stop: int) -> None:
        """Write the addresses of the rows ``start`` to ``stop`` into the fields of a struct."""
        (mean, var, last, step), at = self.slots, start * self.row
        fields[mean], fields[var] = self.mean + at, self.var + at
        fields[last], fields[step] = stop - start - 1, self.features


class Key(NamedTuple):
    """All that the struct of a layer's calls depends on.

    Args:
        products: dtype of the products.
        features: number of features of x.
        units: number of hidden units.
        taken: steps, rows and momenta of a call that takes statistics, else None.
        forms: shape and dtype of each tensor that the layer holds.
        addresses: address of each of these tensors.
    """

    products: torch.dtype
    features: int
    units: int
    taken: tuple[int, int, list[Any]] | None
    forms: list[tuple[Any, ...]]
    addresses: list[int]


class Prepared(NamedTuple):
    """The struct of a layer's calls as long as these have the same key.

    Args:
        key: what the struct depends on.
        layer: the struct, with the addresses of parameters and of constants.
        forms: forms of the parameters, as the backward pass compares them.
        constants: where each population has the rows that serve as constants.
        sites: the populations that take a minibatch, from step 0 on.
        counts: the counts of minibatches of each population, read where they are.
    """

    key: Key
    layer: library.CLayer
    forms: list[tuple[Any, ...]]
    constants: list[Constants]
    sites: Any
    counts: list[Any]


class LayerTensors(NamedTuple):
    """The tensors of a layer at one call, and its populations.

    Args:
        parameters: parameters in the kernel's order, None for those that the layer lacks.
        populations: populations in the order of the kernel's sites.
        buffers: buffers of all populations.
    """

    parameters: list[Any]
    populations: list[Any]
    buffers: list[Any]

    def held(self) -> list[Any]:
        """Return all tensors that the layer holds."""
        return [p for p in self.parameters if p is not None] + self.buffers


def by_population(buffers: list[Any], names: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the buffers of each population, which has as many as there are names."""
    for start in range(0, len(buffers), len(names)):
        yield buffers[start : start + len(names)]


def constants_of(site: int, mean: Tensor, var: Tensor) -> Constants:
    """Return where a site of the struct gets rows of a mean and a variance from."""
    features = mean.shape[-1]
    row = features * mean.element_size()
    return Constants(_CONSTANTS[site], mean.data_ptr(), var.data_ptr(), features, row)


def prepare(
    known: KnownLayer,
    key: Key,
    frames: tuple[int, int],
    leaves: Any,
    populations: list[Any],
    each_own: list[list[Any]],
) -> Prepared | None:
    """Make the structs of a call, or return None if the kernel could not read its tensors.

    Raises:
        RuntimeError: if a parameter has another shape than the layer's.
    """
    x, _, h, c, *parameters = leaves
    (T, B), (products, features, units, *_), dtype = frames, key, h.dtype
    takes = key.taken is not None
    read, at_hand, constants = [p for p in parameters if p is not None], [], []
    for k, (mean, var, *counts) in zip(known.sites, each_own, strict=True):
        width = units * (1 if k == Sites._fields.index("cell") else known.options[takes].gates)
        shape = (mean.shape[0], width)
        if not mean.shape == var.shape == shape:
            return None
        if not all([form_on_cpu(n) == (shape[:1], torch.int64) and n.is_cpu for n in counts]):
            return None
        if takes and any([b.is_inference() for b in (mean, var, *counts)]):
            return None
        read += mean, var
        constants.append(constants_of(k, mean, var))
        # the key has their address
        at_hand.append((c_int64 * len(mean)).from_address(counts[-1].data_ptr()))
    if not all([t.dtype is dtype and t.is_cpu for t in read]):
        return None
    options = known.options[takes]
    x = x.view(T, B, features)
    inputs = Inputs._make((x, x, h, c, *parameters, *NO_CONSTANTS))
    check_shapes(inputs, CELL_OF_NAME[options.cell])
    none = (None,) * len(NO_CONSTANTS)
    numbers = MULTIPLIED.index(products)
    struct = without_tensors((T, B, features, units), numbers, options, none)
    layer = library.CLayer.from_buffer_copy(struct)
    write_addresses(layer, PARAMETERS, parameters)
    sites = (library.CPopulation * len(populations))()
    if takes:
        for site, population, own in zip(sites, populations, each_own, strict=True):
            fill(site, population, own, 0, T)
            site.count = B
    forms = [form(p) for p in parameters if p is not None]
    return Prepared(key, layer, forms, constants, sites, at_hand)


def leaves_of(
    x: Tensor, sizes: Tensor | None, state: State, parameters: Sequence[Any]
) -> tuple[Any, ...]:
    """Return ``Inputs.leaves``, of which ``sizes`` may be None; x, h and c are made contiguous."""
    x, h, *c = [unwrap_if_dead(t).contiguous() for t in (x, *state)]
    return x, None if sizes is None else sizes.contiguous(), h, joined(c), *parameters


def run_prepared(
    known: KnownLayer,
    prepared: Prepared,
    tensors: LayerTensors,
    leaves: tuple[Any, ...],
    suffix: str,
    step: int,
    noise: float,
    differentiable: bool,
) -> tuple[Tensor, State] | None:
    """Run a call that is prepared, or return None where a step has no statistics of its own."""
    x, active, h, c, *_ = leaves
    T, B, features = x.shape if suffix else (1, *x.shape)
    takes, populations = prepared.key.taken is not None, tensors.populations
    layer = library.CLayer.from_buffer_copy(prepared.layer)
    fields, constants = slots(layer), []
    if not takes:
        # counts may change where they are, so that each call reads them
        at_hand = zip(populations, prepared.counts, strict=True)
        rows = [population.own_rows(step, T, counts) for population, counts in at_hand]
        if None in rows:
            return None
        if differentiable and rows:
            constants = _kept_for_backward(known.sites, populations, fields, step, T)
        else:
            for each, (start, stop) in zip(prepared.constants, rows, strict=True):
                each.write(fields, start, stop)
    if noise:
        # drawn last, as the usual call would draw it again
        leaves = (x, active, torch.randn_like(h).mul_(noise), *leaves[3:])
    forms, narrow = prepared.forms, prepared.key.products is torch.bfloat16
    if narrow:
        # autograd records these conversions, as on the usual way
        x, *weights = [leaves[k].to(torch.bfloat16) for k in _MULTIPLIED]
        for slot, weight in zip(slots_of(PARAMETERS[:2]), weights, strict=True):
            fields[slot] = weight.data_ptr()
        leaves = (x, *leaves[1 : _MULTIPLIED[1]], *weights, *leaves[_MULTIPLIED[2] + 1 :])
        forms = [*map(form, weights), *forms[2:]]
        # the one result of a step is h_n, which is float32
        layer.narrow = bool(suffix) and not differentiable
    sizes = T, B, features, h.shape[1]
    call = ShortPasses(layer, known.options[takes], forms, constants, sizes, not suffix)
    output, *states = call.run(leaves, differentiable)
    if narrow and suffix:
        # rounded as on the usual way, even if the caller gets float32
        output = output.to(torch.bfloat16)
    if takes:
        increment_version(tensors.buffers)
        sites = type(prepared.sites).from_buffer_copy(prepared.sites)
        if step:
            each_own = by_population(tensors.buffers, BUFFERS)
            for site, population, own in zip(sites, populations, each_own, strict=True):
                fill(site, population, own, step, T)
        call.update(sites, known.taken)
    if c is not None and c.dim() > 2:
        states[-1:] = separated(states[-1], 2)
    return output, (*states,) if suffix else (output, *states)


def _kept_for_backward(
    sites: Sequence[int], populations: list[Any], fields: Any, step: int, steps: int
) -> list[Tensor | None]:
    """Return a call's statistics for the backward pass, and write their addresses into its struct.

    A training step may change the populations before the backward pass reads them.
    """
    constants = list(NO_CONSTANTS)
    for k, population in zip(sites, populations, strict=True):
        constants[2 * k : 2 * k + 2] = mean, var = population.consecutive(step, steps)
        constants_of(k, mean, var).write(fields, 0, len(mean))
    return constants
