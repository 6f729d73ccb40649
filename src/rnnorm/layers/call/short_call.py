"""Evaluation of a layer on the CPU kernel, without what makes short calls slow."""

from __future__ import annotations

from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from rnnorm.cells.cell import State
from rnnorm.kernels.call_inputs import check_shapes, options_of, sites_of
from rnnorm.kernels.cpu.c_struct import COMPUTED, describe
from rnnorm.kernels.cpu.forward import allocate
from rnnorm.kernels.cpu.library import Layer, run
from rnnorm.kernels.inputs import LEAVES, PARAMETERS, Inputs, Sites
from rnnorm.tracing import unobserved

_form = attrgetter("shape", "dtype", "is_cpu")
_SERVING = ("mean", "var", "num_batches_tracked")


class _Layer:
    """The names that the CPU kernel's call of a layer needs, and the arguments of its last call.

    Args:
        module: layer for which the CPU kernel was chosen, with its cell and norm.
        suffix: suffix of the parameters' names.
    """

    def __init__(self, module: Any, suffix: str) -> None:
        self.cell, self.norm = cell, norm = module.cell, module.norm
        self.options = options_of(cell, norm, None)
        norms = cell.norms(norm)
        active = tuple(norms)
        sites = sites_of(active)
        own = dict(zip(Sites._fields, sites, strict=True))
        kinds_and_sites = [name.rpartition("_") for name in PARAMETERS]
        self.parameters = [f"{kind}_{own.get(s, s)}{suffix}" for kind, _, s in kinds_and_sites]
        # computed parameters are no parameters, and a site without gamma is refused elsewhere
        needed = [f"gamma_{site}{suffix}" for site in active]
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
        # the kernel's last argument, and the tensors and the populations' rows that it has
        self.last: tuple[Any, list[Any] | None, Any] = None, None, None


# by layer and suffix; kept outside the layers, so that it is neither copied nor pickled
_layers: WeakKeyDictionary[nn.Module, dict[str, _Layer]] = WeakKeyDictionary()


def evaluate(
    module: Any, x: Tensor, state: State, suffix: str, step: int | Tensor
) -> tuple[Tensor, State] | None:
    """Run a layer in evaluation without autograd, masks, autocast and padding on the CPU kernel.

    Args:
        module: layer for which the CPU kernel was chosen.
        x: ``(T, B, I)``.
        state: the states ``(B, ·)``.
        suffix: suffix of the parameters' names.
        step: index of the first frame.

    Returns:
        output and final state, or None if only the usual call gives them.

    Raises:
        RuntimeError: if a parameter or a statistic has another shape than the layer's.
    """
    (T, B, features), dtype = x.shape, x.dtype
    given = (x, *state)
    if type(step) is not int or B == 0 or dtype not in COMPUTED or not unobserved(given):
        return None
    layers = _layers.setdefault(module, {})
    known = layers.get(suffix)
    if known is None or known.cell is not module.cell or known.norm is not module.norm:
        known = layers[suffix] = _Layer(module, suffix)
    parameters = [module._parameters.get(name) for name in known.parameters]
    if list(map(type, parameters)) != known.kinds:
        # parametrizations, pruning and functional_call put other tensors in their place
        layers.pop(suffix, None)
        return None
    moments: list[Tensor] = []
    rows: list[tuple[int, int, int]] = []
    for name in known.populations.values():
        population: Any = module._modules[name]
        mean, var, batches = map(population._buffers.get, _SERVING)
        if not (type(mean) is type(var) is type(batches) is Tensor and batches.is_cpu):
            return None
        own = population.own_rows(step, T)
        if own is None:
            return None
        moments += (mean, var)
        rows.append((batches.shape[0], *own))
    held = [*[p for p in parameters if p is not None], *moments]
    if torch.is_grad_enabled() and any([t.requires_grad for t in (*given, *held)]):
        return None
    if any(map(Tensor.is_neg, given)) or not all(map(Tensor.is_contiguous, held)):
        return None
    if not all([s.dtype is dtype and s.is_cpu for s in state]):
        return None
    x, h, *c = [t.contiguous() for t in given]
    units = h.shape[1]
    sizes = torch.full((T,), B, dtype=torch.int64, device="cpu")
    key = dtype, features, units, list(map(Tensor.data_ptr, held)), list(map(_form, held))
    last_key, placed, layer = known.last
    if last_key == key:
        layer = Layer.from_buffer_copy(layer)
        output, h_n, *c_n = x.new_empty((T, B, units)), *map(torch.empty_like, (h, *c))
        layer.T, layer.B, layer.sizes = T, B, sizes.data_ptr()
        layer.x, layer.output = x.data_ptr(), output.data_ptr()
        layer.h0, layer.h_n = h.data_ptr(), h_n.data_ptr()
        if c:
            layer.c0, layer.c_n = c[0].data_ptr(), c_n[0].data_ptr()
    else:
        if not all([t.dtype is dtype and t.is_cpu for t in held]):
            return None
        names = [f"{kind}_{site}" for site in known.populations for kind in ("mean", "var")]
        without = [None] * (len(Inputs._fields) - LEAVES)
        inputs = Inputs._make((x, sizes, h, c[0] if c else None, *parameters, *without))
        some = [moment[:T].unsqueeze(1) for moment in moments]
        inputs = inputs._replace(**dict(zip(names, some, strict=True)))
        check_shapes(inputs, known.options.gates, known.options.independent)
        results = allocate(inputs, known.options, save=False, distinct=False)
        output, h_n, *c_n = results.differentiable[: 1 + len(state)]
        layer, placed = describe(inputs, known.options, results), None
    if rows != placed:
        sites = [layer.site[Sites._fields.index(site)] for site in known.populations]
        each = zip(sites, rows, moments[::2], moments[1::2], strict=True)
        for constants, (length, start, stop), mean, var in each:
            if not mean.shape[0] == var.shape[0] == length:
                return None
            at = start * mean.stride(0) * mean.element_size()
            constants.constant_mean = mean.data_ptr() + at
            constants.constant_var = var.data_ptr() + at
            constants.constant_last = stop - start - 1
        known.last = key, rows, layer
    run("rnnorm_forward", layer)
    return output, (h_n, *c_n)
