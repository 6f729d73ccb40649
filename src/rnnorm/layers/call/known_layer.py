"""The part of a short call that a layer's next one reuses, and the test for a repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from rnnorm.kernels import dispatch, own_call
from rnnorm.kernels.call import Request
from rnnorm.kernels.call_inputs import options_of, sites_of
from rnnorm.kernels.cpu import layer as cpu
from rnnorm.kernels.inputs import PARAMETERS, Options, Sites
from rnnorm.layers.call.checks import LAST_STEP
from rnnorm.layers.call.prepared_call import (
    EVALUATION_BUFFERS,
    LayerTensors,
    Prepared,
    unwrap_if_dead,
)
from rnnorm.norm.population import BUFFERS
from rnnorm.tracing import observed

# what decides how a population serves and takes minibatches, beside its buffers
_settings = attrgetter("shared", "_filled", "momentum", "horizon", "_checked")
# compares types, dtypes, shapes, strides and dispatch keys of several tensors at once
_Guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)


class Repetition(NamedTuple):
    """The conditions under which the next call of a layer repeats the last one.

    Args:
        prepared: what the last call has prepared.
        situation: modes, number of states given, and settings of the populations.
        same_forms: whether x, the states given, parameters and buffers have the same types, dtypes,
            shapes and strides, and autograd, autocast, tracers and modes see them as before. Where
            no statistic is taken and no state given, x may have another number of frames and rows.
        differentiable: whether autograd records the call.
        latest: the last step at which training needs no more rows of a population.
    """

    prepared: Prepared
    situation: tuple[Any, ...]
    same_forms: Callable[..., bool]
    differentiable: bool
    latest: float


class KnownLayer:
    """The names that a short call of a layer needs, and what the layer's last call has prepared.

    Args:
        module: layer for which the CPU kernel was chosen, with its norm.
        suffix: suffix of the parameters' names.
        cell: cell of the layer, as the kernel knows it.
    """

    last: Prepared | None = None
    # shape of x, and whether the next call has to have it
    last_form: tuple[tuple[int, ...], bool] = ((), True)
    repetition: Repetition | None = None

    def __init__(self, module: Any, suffix: str, cell: Any) -> None:
        self._runs: dict[tuple[torch.dtype, bool], bool] = {}
        #: the modes, as values of ``training``, in which a call was left to the usual way
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
        # a computed weight is no Parameter, and the usual call refuses a weight or γ that is gone
        needed = [name + suffix for name in module._needed_weights()]
        needed += [f"gamma_{site}{suffix}" for site in norms]
        self.kinds = [
            nn.Parameter
            if name in needed or is_parametrized(module) or getattr(module, name, None) is not None
            else type(None)
            for name in self.parameters
        ]
        # names of the populations, by the kernel's site
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

    def remember(
        self,
        module: Any,
        prepared: Prepared,
        tensors: LayerTensors,
        differentiable: bool,
        frames: int,
        products: torch.dtype | None,
        x: Tensor,
        given: Sequence[Any],
    ) -> None:
        """Remember a call after the first, so that ``repeated`` recognises the next one.

        Args:
            module: the layer.
            prepared: what the call has prepared.
            tensors: the layer's tensors.
            differentiable: whether autograd records the call.
            frames: number of frames.
            products: the dtype of matrix products under autocast.
            x: the input, as ``repeated`` is given it.
            given: the states that the user gave.
        """
        self.repetition = None
        # statistics that are taken, and given states, fix the number of rows
        fixed = bool(given) or prepared.key.taken is not None
        (shape, was_fixed), self.last_form = self.last_form, (x.shape, fixed)
        # shapes that take turns would be remembered for nothing
        if shape != x.shape and (fixed or was_fixed):
            return
        held = (x, *given, *tensors.held())
        if len({*map(id, held)}) < len(held):
            # guards know no tensor twice, such as zeros for both states
            return
        if self.own or _Guards is None or any([unwrap_if_dead(t) is not t for t in held]):
            return
        sizes, strides = None, None
        if not fixed:
            others, any_number = held[1:], [None] * (x.dim() - 1)
            sizes = [[*any_number, x.shape[-1]], *[[*t.shape] for t in others]]
            strides = [[*any_number, None], *[[*t.stride()] for t in others]]
        guards = _Guards(*held, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        situation = _situation(module, given, tensors.populations, products)
        ends = [
            len(population)
            for population in tensors.populations
            if population.horizon is None or population.horizon > len(population)
        ]
        latest = min(ends, default=math.inf) - frames if module.training else math.inf
        self.repetition = Repetition(prepared, situation, guards.check, differentiable, latest)

    def repeated(
        self,
        last: Repetition,
        module: Any,
        x: Any,
        given: Sequence[Any],
        step: Any,
        products: torch.dtype | None,
    ) -> LayerTensors | None:
        """Return the layer's tensors if a call differs from the last one in numbers alone.

        Args:
            last: the last call.
            module: the layer.
            x: the input.
            given: the states that the user gave.
            step: as given by the user.
            products: the dtype of matrix products under autocast.
        """
        if module.cell is not self.cell or module.norm is not self.norm:
            return None
        if observed() or not dispatch.quiet():
            return None
        first = 0 if step is None else step
        if type(first) is not int or not 0 <= first <= LAST_STEP or first > last.latest:
            return None
        training = module.training
        if training and module.ranks is not None:
            return None
        tensors = self.tensors(module)
        if _situation(module, given, tensors.populations, products) != last.situation:
            return None
        if list(map(type, tensors.parameters)) != self.kinds:
            return None
        held = tensors.held()
        if not last.same_forms(x, *given, *held) or x.numel() == 0:
            return None
        if list(map(Tensor.data_ptr, held)) != last.prepared.key.addresses:
            return None
        # the usual call warns of a stream without step
        alike = training or step is not None or not given or module._warned_of_step
        return tensors if alike or all([p.shared for p in tensors.populations]) else None

    def tensors(self, module: Any) -> LayerTensors:
        """Return the tensors of the layer as its module has them now."""
        populations = [module._modules[name] for name in self.populations.values()]
        names = BUFFERS if module.training else EVALUATION_BUFFERS
        return LayerTensors(
            list(map(module._parameters.get, self.parameters)),
            populations,
            # read once: another thread may grow them
            [p._buffers.get(name) for p in populations for name in names],
        )

    def checked(self, module: Any) -> bool:
        """Tell whether each population has been checked for a statistic."""
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


def products_on_cpu() -> torch.dtype | None:
    """Return the dtype of matrix products on the CPU, None without autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _situation(
    module: Any,
    given: Sequence[Any],
    populations: Sequence[Any],
    products: torch.dtype | None,
) -> tuple[Any, ...]:
    """Return what decides about a call of a layer beside its tensors."""
    modes = module.training, torch.is_grad_enabled(), products
    return *modes, len(given), *map(_settings, populations)
