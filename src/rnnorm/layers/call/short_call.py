"""The short call: plain arguments on the CPU kernel, without most checks and torch's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import State, Weights
from rnnorm.kernels import dispatch, own_call, own_cell
from rnnorm.kernels.call import Request
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.cpu.c_struct import COMPUTED
from rnnorm.kernels.cpu.library import multiplies_bfloat16
from rnnorm.layers.call.autocast import in_dtypes, result_dtypes
from rnnorm.layers.call.checks import LAST_STEP, as_hx, states_of
from rnnorm.layers.call.known_layer import KnownLayer, Repetition, products_on_cpu
from rnnorm.layers.call.prepared_call import (
    EVALUATION_BUFFERS,
    Key,
    LayerTensors,
    by_population,
    form_on_cpu,
    leaves_of,
    prepare,
    run_prepared,
)
from rnnorm.norm.population import BUFFERS
from rnnorm.tracing import unobserved

_PLAIN = frozenset((Tensor,))
_STRIDED = torch.strided

# known layers by module and suffix; outside the modules, so that they are not copied or pickled
_layers: WeakKeyDictionary[nn.Module, dict[str, KnownLayer]] = WeakKeyDictionary()
_NONE: dict[str, KnownLayer] = {}


def one_step(module: Any, input: Any, hx: Any, step: Any) -> Any:
    """Run a one-step class on a batch, and return the next state, or None as ``one_layer``."""
    if type(input) is not Tensor or input.is_nested or input.dim() != 2:
        return None
    shape = (input.shape[0], module.hidden_size)
    found = one_layer(module, "", input, hx, step, shape)
    return None if found is None else as_hx(found[1])


def one_layer(
    module: Any, suffix: str, x: Tensor, hx: Any, step: Any, shape: tuple[int, ...]
) -> tuple[Tensor, State] | None:
    """Check a plain call of one layer, count it, warn as the usual call does, and run it.

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
    given = states_of(hx, states)
    products = products_on_cpu()
    known = _layers.get(module, _NONE).get(suffix)
    # read once: another thread may call the layer
    last = None if known is None else known.repetition
    if known is not None and last is not None:
        tensors = known.repeated(last, module, x, given, step, products)
        if tensors is not None:
            state, noise = _first_state(module, x, given, suffix)
            found = _repeat(known, last, tensors, x, state, suffix, step or 0, noise)
            if found is not None:
                dispatch.calls["cpu"] += 1
                return _in_torch_dtypes(found, module, x, given, suffix, products)
    if needs_usual_call(module, x, hx, given, step, shape, products):
        return None
    cell = _cell_of_kernel(module, suffix, x)
    if cell is None:
        return None
    known = _known(module, suffix, cell)
    if not known.own and not known.runs(x, training, one_step=not suffix):
        return None
    streams = step is None and bool(given)
    if not training and (streams or not known.checked(module)):
        module._warn(streams)
    state, noise = _first_state(module, x, given, suffix)
    found = _run(known, module, x, state, suffix, step or 0, noise, (x, given), products)
    if found is None:
        known.missed.add(training)
        return None
    dispatch.calls["cpu"] += 1
    return _in_torch_dtypes(found, module, x, given, suffix, products)


def needs_usual_call(
    module: Any,
    x: Tensor,
    hx: Any,
    given: State,
    step: Any,
    shape: tuple[int, ...],
    products: torch.dtype | None,
) -> bool:
    """Tell whether the arguments or the surroundings of a call need the usual call's checks.

    Arguments are those of ``one_layer``, the tensors ``given`` in ``hx``, and the dtype of matrix
    ``products`` under autocast.
    """
    training, shapes = module.training, [shape] * len(module.cell.states)
    return (
        not unobserved((x, *given))
        or x.shape[-1] != module.input_size
        or x.shape[0] == 0
        or not (step is None or (type(step) is int and 0 <= step <= LAST_STEP))
        # an element of hx may be no tensor
        or (hx is not None and [getattr(s, "shape", None) for s in given] != shapes)
        or (products is not None and not _multiplies(module, x, products))
        or not dispatch.quiet()
        or (training and module.ranks is not None and module.synchronized())
    )


def _multiplies(module: Any, x: Tensor, products: torch.dtype) -> bool:
    """Tell whether the kernel multiplies a float32 input in the dtype of autocast."""
    narrow = products is torch.bfloat16 and multiplies_bfloat16()
    return narrow and x.dtype is torch.float32 and own_cell.built_in(module.cell)


def _in_torch_dtypes(
    found: tuple[Tensor, State],
    module: Any,
    x: Tensor,
    given: State,
    suffix: str,
    products: torch.dtype | None,
) -> tuple[Tensor, State]:
    """Return the output and the states in the dtypes that torch.nn gives them under autocast."""
    if products is None:
        return found
    output, state = found
    results = (output, *state) if suffix else state
    # the weights are of the dtype of x
    dtypes = result_dtypes(module.torch_class, products, x, x, given, len(results))
    results = in_dtypes(results, dtypes)
    return results[0], results[1:] if suffix else results


def _first_state(
    module: Any, x: Tensor, given: Sequence[Tensor], suffix: str
) -> tuple[State, float]:
    """Return the states ``(B, ·)`` that a call begins with, and how much noise replaces h."""
    if given:
        return tuple([s.squeeze(0) for s in given] if suffix else given), 0.0
    zeros = x.new_zeros((x.shape[-2], module.hidden_size))
    noise = module.initial_noise if module.training and suffix else 0.0
    return (zeros,) * len(module.cell.states), noise


def _repeat(
    known: KnownLayer,
    last: Repetition,
    tensors: LayerTensors,
    x: Tensor,
    state: State,
    suffix: str,
    step: int,
    noise: float = 0.0,
) -> tuple[Tensor, State] | None:
    """Run a call that differs from the last one of the layer in numbers alone, as ``_run`` does."""
    if len(state) < 3 and all(map(Tensor.is_contiguous, (x, *state))):
        leaves = (x, None, state[0], state[1] if len(state) > 1 else None, *tensors.parameters)
    else:
        leaves = leaves_of(x, None, state, tensors.parameters)
    prepared, differentiable = last.prepared, last.differentiable
    return run_prepared(known, prepared, tensors, leaves, suffix, step, noise, differentiable)


def _cell_of_kernel(module: Any, suffix: str, x: Tensor) -> Any:
    """Return the cell as the CPU kernel knows it, None if that kernel does not run a user's."""
    cell, training = module.cell, module.training
    if own_cell.built_in(cell):
        return cell
    last = _layers.get(module, _NONE).get(suffix)
    if not module._fits(x) or (last is not None and training in last.missed):
        # a trace of the cell would be in vain
        return None
    request = Request(**module._asked(x), training=training, one_step=not suffix)
    return None if cpu.refuses(request) else own_cell.graph_of(cell)


def _known(module: Any, suffix: str, cell: Any) -> KnownLayer:
    """Return the names that a call needs of a layer, whose cell is given as the kernel knows it."""
    layers = _layers.get(module)
    known = None if layers is None else layers.get(suffix)
    if known is None or known.cell is not cell or known.norm is not module.norm:
        known = _layers.setdefault(module, {})[suffix] = KnownLayer(module, suffix, cell)
    return known


def one_of_several(
    module: Any, suffix: str, x: Tensor, state: State, given: State, step: int
) -> tuple[Tensor, State] | None:
    """Run one layer and direction of a call that needs no usual call's checks.

    Args:
        module: layers of a built-in cell for which the CPU kernel was chosen.
        suffix: suffix of the parameters' names.
        x: ``(T, B, ·)``.
        state: the states ``(B, ·)``.
        given: those that the user gave: all of ``state`` or none.
        step: index of the first frame.

    Returns:
        output and final state, or None if only the usual call gives them.
    """
    known = _known(module, suffix, module.cell)
    # read once: another thread may call the layer
    if (last := known.repetition) is not None:
        tensors = known.repeated(last, module, x, given, step, None)
        found = tensors and _repeat(known, last, tensors, x, state, suffix, step)
        if found is not None:
            return found
    return _run(known, module, x, state, suffix, step, 0.0, (x, given))


def run(
    module: Any,
    x: Tensor,
    batch_sizes: Tensor | None,
    state: State,
    suffix: str,
    step: int | Tensor,
) -> tuple[Tensor, State] | None:
    """Run a layer without masks, autocast and resets on the CPU kernel.

    Args:
        module: layer for which the CPU kernel was chosen.
        x: ``(T, B, I)``, the longest row first.
        batch_sizes: ``(T,)`` int64 on the CPU, or None if every row is active at every step.
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
    return _run(_known(module, suffix, cell), module, x, state, suffix, step, sizes=batch_sizes)


def _run(
    known: KnownLayer,
    module: Any,
    x: Tensor,
    state: State,
    suffix: str,
    step: int,
    noise: float = 0.0,
    asked: tuple[Any, ...] = (),
    products: torch.dtype | None = None,
    sizes: Tensor | None = None,
) -> tuple[Tensor, State] | None:
    """Run a layer of which ``known`` has the names, where nothing observes operators.

    Unless ``noise`` is 0, noise of this standard deviation takes the place of the first h.
    ``asked`` is x and the user's states where the call may be remembered, else empty. ``products``
    is the dtype of matrix products under autocast. ``sizes`` are the active rows of each step, None
    if these are all rows. The result is None if only the usual call gives it.
    """
    dtype, (T, B, features) = x.dtype, x.shape if suffix else (1, *x.shape)
    given = (x, *state)
    if B == 0 or dtype not in COMPUTED:
        return None
    for tensor in given:
        if tensor.dtype is not dtype or not tensor.is_cpu or tensor.layout is not _STRIDED:
            return None
    if products and known.options[False].heads != 1:
        return None
    parameters = _parameters(known, module, suffix, dtype)
    if parameters is None:
        return None
    own = [p for p in parameters if p is not None]
    differentiable = torch.is_grad_enabled() and any([t.requires_grad for t in (*given, *own)])
    takes = module.training and bool(known.populations)
    populations: list[Any] = [module._modules[name] for name in known.populations.values()]
    merges = T > 1 and any([population.shared for population in populations])
    if takes and (B == 1 or sizes is not None or merges):
        # the usual call serves few rows from the population, and merges steps of one statistic
        return None
    for population in populations if takes else ():
        population.grow(step + T)
    # read once: another thread may grow them
    names = BUFFERS if takes else EVALUATION_BUFFERS
    buffers: list[Any] = [p._buffers.get(name) for p in populations for name in names]
    held = own + buffers
    if not _PLAIN.issuperset(map(type, buffers)) or not all(map(Tensor.is_contiguous, held)):
        return None
    if any(map(Tensor.is_neg, (*given, *held))) or any(map(Tensor._is_zerotensor, given)):
        # their memory holds other numbers, or there is none
        return None
    leaves = leaves_of(x, sizes, state, parameters)
    taken = (T, B, [population.momentum for population in populations]) if takes else None
    forms, addresses = list(map(form_on_cpu, held)), list(map(Tensor.data_ptr, held))
    key = Key(products or dtype, features, leaves[2].shape[1], taken, forms, addresses)
    prepared = known.last
    if prepared is None or prepared.key != key:
        each_own = list(by_population(buffers, names))
        prepared = prepare(known, key, (T, B), leaves, populations, each_own)
        if prepared is None:
            return None
        known.last = prepared
    tensors = LayerTensors(parameters, populations, buffers)
    found = run_prepared(known, prepared, tensors, leaves, suffix, step, noise, differentiable)
    if found is not None and asked:
        known.remember(module, prepared, tensors, differentiable, T, products, *asked)
    return found


def _parameters(
    known: KnownLayer, module: Any, suffix: str, dtype: torch.dtype
) -> list[Any] | None:
    """Return the parameters in the kernel's order, or None if only the usual call takes them."""
    found: list[Any] = list(map(module._parameters.get, known.parameters))
    if list(map(type, found)) != known.kinds:
        # parametrizations, pruning and functional_call put other tensors in their place
        _layers[module].pop(suffix, None)
        return None
    projects = found[-1] is not None
    if projects or (known.own and not _adds_as_the_kernel(known.own, module, found, suffix)):
        return None
    # a call of another dtype is refused before statistics grow
    first = next(p for p in found if p is not None)
    return found if first.dtype is dtype else None


def _adds_as_the_kernel(own: Any, module: Any, parameters: list[Any], suffix: str) -> bool:
    """Tell whether the kernel may read the parameters of a user's cell unchanged."""
    if "[" in "".join(own.vectors):
        # a gate's part of a weight
        return False
    more = {name: module._parameters.get(name + suffix) for name in module.own_weights}
    weights = Weights._make((*parameters[:4], None, more))
    active = own.active_sites(module.norm)
    return own_call.adds_as_the_kernel(module.cell, own.graph, weights, active)
