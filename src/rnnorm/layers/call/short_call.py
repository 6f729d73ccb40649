"""The short way of a plain call on the CPU kernel, without most checks and operators of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import c_int64
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.utils.parametrize import is_parametrized

from rnnorm.cells.cell import State, Weights
from rnnorm.kernels import dispatch
from rnnorm.kernels.call import Request
from rnnorm.kernels.call_inputs import check_shapes, options_of, sites_of
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cpu import library, own_call, own_cell
from rnnorm.kernels.cpu.c_struct import COMPUTED, MULTIPLIED, place, without_tensors
from rnnorm.kernels.cpu.dense_call import DenseCall
from rnnorm.kernels.cpu.update import fill
from rnnorm.kernels.inputs import (
    LEAVES,
    PARAMETERS,
    Inputs,
    Options,
    Sites,
    joined,
    separated,
)
from rnnorm.kernels.operators import form
from rnnorm.layers.call.checks import LAST_STEP
from rnnorm.norm.population import BUFFERS
from rnnorm.tracing import unobserved

# the address says whether memory is of the CPU
_form = attrgetter("shape", "dtype")
_PLAIN = frozenset((Tensor,))
_STRIDED = torch.strided
# what a transform of torch.func has left behind has no memory of its own
_unwrap_if_dead = torch._C._functorch.unwrap_if_dead
# evaluation reads no count of rows
_READ = tuple([name for name in BUFFERS if name != "rows"])
_NO_CONSTANTS: list[Tensor | None] = [None] * (len(Inputs._fields) - LEAVES)


class _Prepared(NamedTuple):
    """The struct of a layer's calls as long as its tensors have the same forms and addresses.

    Args:
        key: these forms and addresses, and what else the structs depend on.
        layer: the struct, with the addresses of parameters and of constants.
        forms: forms of the parameters, as the backward pass compares them.
        rows: the first and the end of the rows of each population that serve as constants.
        sites: the populations that take a minibatch.
        counts: the counts of minibatches of each population, read where they are.
    """

    key: tuple[Any, ...]
    layer: library.Layer
    forms: list[tuple[Any, ...]]
    rows: list[tuple[int, int]]
    sites: Any
    counts: list[Any]


class _Layer:
    """The names that the CPU kernel's call of a layer needs, and what its last call has prepared.

    Args:
        module: layer for which the CPU kernel was chosen, with its norm.
        suffix: suffix of the parameters' names.
        cell: cell of the layer, as the kernel knows it.
    """

    last: _Prepared | None = None

    def __init__(self, module: Any, suffix: str, cell: Any) -> None:
        self._runs: dict[tuple[torch.dtype, bool], bool] = {}
        #: in which modes a call of a user's cell was left to the usual way
        self.missed: set[bool] = set()
        self.cell, self.norm, norm = cell, module.norm, module.norm
        self.own = None if cell is module.cell else cell
        names = own_call.names_of(cell) if self.own else {}
        norms = cell.norms(norm)
        sites = sites_of(tuple(norms))
        own = dict(zip(Sites._fields, sites, strict=True))
        kinds_and_sites = [name.rpartition("_") for name in PARAMETERS]
        kernels = [f"{kind}_{own.get(s, s)}" for kind, _, s in kinds_and_sites]
        self.parameters = [names.get(name, name) + suffix for name in kernels]
        # computed parameters are no parameters, and a site without gamma is refused elsewhere
        needed = [f"gamma_{site}{suffix}" for site in norms]
        self.kinds = [
            nn.Parameter
            if name in needed or is_parametrized(module) or getattr(module, name, None) is not None
            else type(None)
            for name in self.parameters
        ]
        # by site of the kernel
        self.populations = {
            of_kernel: f"population_{site}{suffix}"
            for of_kernel, site in zip(Sites._fields, sites, strict=True)
            if site in norms and norms[site].takes_statistics
        }
        self.sites = [Sites._fields.index(site) for site in self.populations]
        self.taken = [(f"taken_mean_{site}", f"taken_var_{site}") for site in self.populations]

    @cached_property
    def options(self) -> dict[bool, Options]:
        """The options of both passes, by whether statistics are taken."""
        # every step has as many rows as the first
        return {
            takes: options_of(self.cell, self.norm, 2 if takes else None) for takes in (True, False)
        }

    def warned(self, module: Any) -> bool:
        """Tell whether it was looked whether each population has a statistic."""
        return all([module._modules[name]._checked for name in self.populations.values()])

    def runs(self, x: Tensor, training: bool, one_step: bool) -> bool:
        """Tell whether the CPU kernel is chosen for a dense call, if ``dispatch.settled``."""
        kind = x.dtype, training
        if x.is_cpu and kind not in self._runs:
            request = Request(
                self.cell, self.norm, x.device, x.dtype, training=training, one_step=one_step
            )
            self._runs[kind] = dispatch.kernel_of(request).layer is cpu.layer
        return x.is_cpu and self._runs[kind]


# by layer and suffix; kept outside the layers, so that it is neither copied nor pickled
_layers: WeakKeyDictionary[nn.Module, dict[str, _Layer]] = WeakKeyDictionary()


def sequence(module: Any, input: Any, hx: Any, step: Any) -> Any:
    """Run one layer of a sequence class on a dense batch, if the CPU kernel is all that it takes.

    Args:
        module: the layer.
        input: as given by the user.
        hx: as given by the user.
        step: as given by the user.

    Returns:
        what the call returns, or None if only the usual call gives that.
    """
    several = module.num_layers > 1 or module.bidirectional or module.proj_size
    if (
        several
        or module.learn_initial_state
        or module.recurrent_dropout
        or type(input) is not Tensor
    ):
        return None
    if input.is_nested or input.dim() != 3:
        return None
    x = input.transpose(0, 1) if module.batch_first else input
    found = _call(module, "_l0", x, hx, step, (1, x.shape[1], module.hidden_size))
    if found is None:
        return None
    output, state = found
    output = output.transpose(0, 1) if module.batch_first else output
    # in place: a view would not allow detach_()
    state = tuple([s.unsqueeze_(0) for s in state])
    return output, state if len(state) > 1 else state[0]


def one_step(module: Any, input: Any, hx: Any, step: Any) -> Any:
    """Run a one-step class on a batch as ``sequence`` does, and return the next state or None."""
    if type(input) is not Tensor or input.is_nested or input.dim() != 2:
        return None
    shape = (input.shape[0], module.hidden_size)
    found = _call(module, "", input, hx, step, shape)
    if found is None:
        return None
    state = found[1]
    return state if len(state) > 1 else state[0]


def _call(
    module: Any, suffix: str, x: Tensor, hx: Any, step: Any, shape: tuple[int, ...]
) -> tuple[Tensor, State] | None:
    """Check a plain call of a layer, count it, warn as it warns, and run it.

    Args:
        module: the layer.
        suffix: suffix of the parameters' names.
        x: the input ``(T, B, ·)``, of a one-step class ``(B, ·)``.
        hx: as given by the user.
        step: as given by the user.
        shape: shape of a state that is given.

    Returns:
        output and states ``(B, ·)``, or None if only the usual call gives them.
    """
    training, states = module.training, len(module.cell.states)
    given = () if hx is None else tuple(hx) if states > 1 else (hx,)
    if not unobserved((x, *given)):
        return None
    usual = (
        x.shape[-1] != module.input_size
        or x.shape[0] == 0
        or not (step is None or (type(step) is int and 0 <= step <= LAST_STEP))
        or (hx is not None and [s.shape for s in given] != [shape] * states)
        or torch.is_autocast_enabled("cpu")
        or not dispatch.quiet()
        or (training and module.ranks is not None and module.synchronized())
    )
    if usual:
        return None
    cell = _of_kernel(module, suffix, x)
    if cell is None:
        return None
    known = _known(module, suffix, cell)
    if not known.own and not known.runs(x, training, one_step=not suffix):
        return None
    streams = step is None and bool(given)
    if not training and (streams or not known.warned(module)):
        module._warn(streams)
    noise = 0.0
    if not given:
        given = (x.new_zeros(shape[-2:]),) * states
        noise = module.initial_noise if training and suffix else 0.0
    elif len(shape) > 2:
        given = tuple([s.squeeze(0) for s in given])
    found = _run(known, module, x, given, suffix, step or 0, noise)
    if found is None:
        known.missed.add(training)
    else:
        dispatch.calls["cpu"] += 1
    return found


def _of_kernel(module: Any, suffix: str, x: Tensor) -> Any:
    """Return the cell as the CPU kernel knows it, None if that kernel does not run a user's."""
    cell, training = module.cell, module.training
    if own_cell.built_in(cell):
        return cell
    last = _layers.get(module, {}).get(suffix)
    if last is not None and training in last.missed:
        # another trace for nothing
        return None
    request = Request(cell, module.norm, x.device, x.dtype, training=training, one_step=not suffix)
    return None if cpu.refuses(request) else own_cell.graph_of(cell)


def _known(module: Any, suffix: str, cell: Any) -> _Layer:
    """Return the names that a call needs of a layer, whose cell is given as the kernel knows it."""
    layers = _layers.get(module)
    known = None if layers is None else layers.get(suffix)
    if known is None or known.cell is not cell or known.norm is not module.norm:
        known = _layers.setdefault(module, {})[suffix] = _Layer(module, suffix, cell)
    return known


def run(
    module: Any, x: Tensor, state: State, suffix: str, step: int | Tensor
) -> tuple[Tensor, State] | None:
    """Run a layer without masks, autocast, padding and resets on the CPU kernel.

    Args:
        module: layer for which the CPU kernel was chosen.
        x: ``(T, B, I)``.
        state: the states ``(B, ·)``.
        suffix: suffix of the parameters' names.
        step: index of the first frame.

    Returns:
        output and final state, or None if only the usual call gives them.

    Raises:
        RuntimeError: if a parameter has another shape than the layer's, or a population cannot
            grow.
    """
    if type(step) is not int or not unobserved((x, *state)):
        return None
    cell = module.cell
    cell = cell if own_cell.built_in(cell) else own_cell.graph_of(cell)
    x = x if suffix else x.squeeze(0)
    return _run(_known(module, suffix, cell), module, x, state, suffix, step)


def _run(
    known: _Layer, module: Any, x: Tensor, state: State, suffix: str, step: int, noise: float = 0.0
) -> tuple[Tensor, State] | None:
    """Run a layer of which ``known`` has the names, where nothing observes operators.

    Unless ``noise`` is 0, a first state of this standard deviation takes the given one's place.
    """
    dtype, (T, B, features) = x.dtype, x.shape if suffix else (1, *x.shape)
    given = (x, *state)
    if B == 0 or dtype not in COMPUTED:
        return None
    for tensor in given:
        if tensor.dtype is not dtype or not tensor.is_cpu or tensor.layout is not _STRIDED:
            return None
    parameters: list[Any] = list(map(module._parameters.get, known.parameters))
    if list(map(type, parameters)) != known.kinds:
        # parametrizations, pruning and functional_call put other tensors in their place
        _layers[module].pop(suffix, None)
        return None
    if known.own and not _adds_as_the_kernel(known.own, module, parameters, suffix):
        return None
    own = [p for p in parameters if p is not None]
    # a call of another dtype than the weights is refused before statistics grow
    if own[0].dtype is not dtype:
        return None
    differentiable = torch.is_grad_enabled() and any([t.requires_grad for t in (*given, *own)])
    takes = module.training and bool(known.populations)
    populations: list[Any] = [module._modules[name] for name in known.populations.values()]
    if takes and (B == 1 or (T > 1 and any([population.shared for population in populations]))):
        # a row of several steps, or of one statistic over all frames
        return None
    if takes:
        for population in populations:
            population.grow(step + T)
    # read once: another thread may grow them
    names = BUFFERS if takes else _READ
    buffers: list[Any] = [p._buffers.get(name) for p in populations for name in names]
    held = own + buffers
    if not _PLAIN.issuperset(map(type, buffers)) or not all(map(Tensor.is_contiguous, held)):
        return None
    if any(map(Tensor.is_neg, (*given, *held))):
        # their memory holds other numbers
        return None
    x, h, *c = [_unwrap_if_dead(t).contiguous() for t in given]
    leaves = (x, None, h, joined(c), *parameters)
    taken = (step, T, B, [population.momentum for population in populations]) if takes else None
    forms, addresses = list(map(_form, held)), list(map(Tensor.data_ptr, held))
    key = dtype, features, h.shape[1], taken, forms, addresses
    prepared = known.last
    if prepared is None or prepared.key != key:
        each_own = list(_by_population(buffers, names))
        prepared = _prepare(known, key, (T, B), leaves, populations, each_own, step)
        if prepared is None:
            return None
        known.last = prepared
    rows: list[Any] = []
    if not takes:
        # counts may change where they are, so that each call reads them
        at_hand = zip(populations, prepared.counts, strict=True)
        rows = [population.own_rows(step, T, counts) for population, counts in at_hand]
        if None in rows:
            return None
    if noise:
        # drawn last, as the usual call would draw it again
        leaves = (x, None, torch.randn_like(h).mul_(noise), *leaves[3:])
    layer = library.Layer.from_buffer_copy(prepared.layer)
    constants: list[Tensor | None] = []
    if rows and differentiable:
        # a training step may change the buffers before the backward pass reads them
        constants = list(_NO_CONSTANTS)
        for k, population in zip(known.sites, populations, strict=True):
            constants[2 * k : 2 * k + 2] = mean, var = population.consecutive(step, T)
            _place_constants(layer.site[k], mean, var, 0, len(mean))
    elif rows != prepared.rows:
        each_own = list(_by_population(buffers, names))
        for k, (mean, var, *_), (start, stop) in zip(known.sites, each_own, rows, strict=True):
            _place_constants(layer.site[k], mean, var, start, stop)
        known.last = prepared._replace(layer=library.Layer.from_buffer_copy(layer), rows=rows)
    sizes = T, B, features, h.shape[1]
    call = DenseCall(layer, known.options[takes], prepared.forms, constants, sizes, not suffix)
    output, *states = call.run(leaves, differentiable)
    if takes:
        increment_version(buffers)
        call.update(prepared.sites, known.taken)
    if len(c) > 1:
        states[-1:] = separated(states[-1], 2)
    return output, (*states,) if suffix else (output, *states)


def _adds_as_the_kernel(own: Any, module: Any, parameters: list[Any], suffix: str) -> bool:
    """Tell whether the kernel's equations of a user's cell are of the parameters as they are."""
    if "[" in "".join(own.vectors):
        # a gate's part of a weight
        return False
    more = {name: module._parameters.get(name + suffix) for name in module.own_weights}
    weights = Weights._make((*parameters[:4], None, more))
    active = own.active_sites(module.norm)
    return own_call.adds_as_the_kernel(module.cell, own.graph, weights, active)


def _by_population(buffers: list[Any], names: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the buffers of each population, which has as many as there are names."""
    for start in range(0, len(buffers), len(names)):
        yield buffers[start : start + len(names)]


def _place_constants(site: library.Site, mean: Tensor, var: Tensor, start: int, stop: int) -> None:
    """Give a site the rows ``start`` to ``stop`` of a mean and a variance."""
    features = mean.shape[-1]
    at = start * features * mean.element_size()
    site.constant_mean, site.constant_var = mean.data_ptr() + at, var.data_ptr() + at
    site.constant_last, site.constant_step = stop - start - 1, features


def _prepare(
    known: _Layer,
    key: tuple[Any, ...],
    frames: tuple[int, int],
    leaves: Any,
    populations: list[Any],
    each_own: list[list[Any]],
    step: int,
) -> _Prepared | None:
    """Make the structs of a call, or return None if the kernel could not read its tensors.

    Raises:
        RuntimeError: if a parameter has another shape than the layer's.
    """
    x, _, h, c, *parameters = leaves
    (T, B), (dtype, features, units, taken, *_) = frames, key
    takes = taken is not None
    read, at_hand = [p for p in parameters if p is not None], []
    for k, (mean, var, *counts) in zip(known.sites, each_own, strict=True):
        width = units * (1 if k == Sites._fields.index("cell") else known.options[takes].gates)
        shape = (mean.shape[0], width)
        if not mean.shape == var.shape == shape:
            return None
        if not all([_form(n) == (shape[:1], torch.int64) and n.is_cpu for n in counts]):
            return None
        if takes and any([b.is_inference() for b in (mean, var, *counts)]):
            return None
        read += mean, var
        # the key has their address
        at_hand.append((c_int64 * len(mean)).from_address(counts[-1].data_ptr()))
    if not all([t.dtype is dtype and t.is_cpu for t in read]):
        return None
    options = known.options[takes]
    x = x.view(T, B, features)
    inputs = Inputs._make((x, x, h, c, *parameters, *_NO_CONSTANTS))
    check_shapes(inputs, options.gates, options.heads)
    none = (None,) * len(_NO_CONSTANTS)
    numbers = MULTIPLIED.index(dtype)
    struct = without_tensors((T, B, features, units), numbers, options, none)
    layer = library.Layer.from_buffer_copy(struct)
    place(layer, PARAMETERS, parameters)
    sites = (library.Population * len(populations))()
    if takes:
        for site, population, own in zip(sites, populations, each_own, strict=True):
            fill(site, population, own, step, T)
            site.count = B
    forms = [form(p) for p in parameters if p is not None]
    return _Prepared(key, layer, forms, [], sites, at_hand)
