"""A frozen layer's call of the CPU kernel, without the checks of other calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from rnnorm.kernels import dispatch
from rnnorm.kernels.call import Request
from rnnorm.kernels.call_inputs import check_shapes, options_of, sites_of
from rnnorm.kernels.cpu.c_struct import COMPUTED
from rnnorm.kernels.cpu.forward import run_forward
from rnnorm.kernels.cpu.library import UNAVAILABLE
from rnnorm.kernels.inputs import LEAVES, NO_MASKS, Inputs, Options
from rnnorm.layers.autocast import autocast_dtype
from rnnorm.layers.checks import LAST_STEP
from rnnorm.layers.one_layer import parameter
from rnnorm.layers.sequence_layer import Sequence
from rnnorm.norm.population import Population
from rnnorm.tracing import unobserved


class LayerInputs(NamedTuple):
    """The names of the parameters and the populations that the kernel reads for one layer."""

    parameters: tuple[str | None, ...]
    populations: tuple[Population | None, ...]


class FrozenCall(NamedTuple):
    """The inputs and options that a frozen layer finds once for all its calls of the CPU kernel."""

    layers: tuple[LayerInputs, ...]
    options: Options

    def _populations(self) -> list[Population | None]:
        return [population for inputs in self.layers for population in inputs.populations]

    @classmethod
    def of(cls, layer: Sequence) -> FrozenCall | None:
        """Look up a layer's inputs; None if it is bidirectional, masked or not for the kernel."""
        cell, norm = layer.cell, layer.norm
        active = cell.active_sites(norm)
        weight: Tensor = parameter(layer, layer._flat_weights_names[0])
        if (
            is_parametrized(layer)
            or layer.bidirectional
            or layer.recurrent_dropout is not None
            or not active
        ):
            return None
        request = Request(cell, norm, weight.device, weight.dtype, layer.proj_size > 0)
        # use_backend does not matter yet: run looks at each call
        if dispatch.why_not("cpu", request):
            return None
        suffixes = layer._suffixes()
        sites = sites_of(active)
        parameters = Inputs._fields[Inputs._fields.index("weight_ih") : LEAVES]
        names = [name.replace("hidden", sites[1]) for name in parameters]
        own = {n + s for n in names for s in suffixes if hasattr(layer, n + s)}
        if not own <= layer._parameters.keys():
            # pruning or weight_norm computes them anew at each call
            return None
        inputs = [
            LayerInputs(
                tuple(n + suffix if n + suffix in own else None for n in names),
                tuple(
                    layer._modules.get(f"population_{site}{suffix}")  # type: ignore[misc]
                    for site in sites
                ),
            )
            for suffix in suffixes
        ]
        return cls(tuple(inputs), options_of(cell, norm, None))

    def run(self, layer: Sequence, x: Any, hx: Any, step: Any) -> tuple[Tensor, Any] | None:
        """Return output and states of a dense input with a state, or None for the usual call."""
        state = hx if isinstance(hx, tuple) and len(layer.cell.states) > 1 else (hx,)
        tensors = (x, *state)
        if any([type(t) is not Tensor or t.is_neg() for t in tensors]):
            return None
        if step is None and not any([p is not None and len(p) > 1 for p in self._populations()]):
            step = 0
        weight = layer._parameters.get("weight_hh_l0")
        # a layer may be frozen on one machine and run on another without the kernel
        if UNAVAILABLE or layer.training or type(step) is not int or not 0 <= step <= LAST_STEP:
            return None
        if weight is None or weight.dtype not in COMPUTED:
            return None
        if not unobserved(tensors) or dispatch.forced() or autocast_dtype(weight.device):
            return None
        if x.dim() != 3 or x.size(2) != layer.input_size or len(state) != len(layer.cell.states):
            return None
        x = x.transpose(0, 1) if layer.batch_first else x
        T, B, _ = x.shape
        shape = (layer.num_layers, B, layer.hidden_size)
        if T == 0 or B == 0 or any([s.shape != shape for s in state]):
            return None
        names = [name for inputs in self.layers for name in inputs.parameters if name]
        given = [layer._parameters.get(name) for name in names]
        if any([type(p) is not nn.Parameter or not p.is_contiguous() for p in given]):
            # functional_call or load_state_dict has replaced parameters
            return None
        tensors = (*tensors, *given)
        if not all([t.dtype is weight.dtype and t.is_cpu for t in tensors]):
            return None
        if torch.is_grad_enabled() and any([t.requires_grad for t in tensors]):
            return None
        sizes = torch.full((T,), B, dtype=torch.int64, device="cpu")
        x = x.contiguous()
        final = []
        for k, (parameter_names, populations) in enumerate(self.layers):
            parameters = [name and layer._parameters[name] for name in parameter_names]
            h, *c = [s[k].contiguous() for s in state]
            moments = [
                moment
                for p in populations
                for moment in (p.consecutive(step, T) if p is not None else (None, None))
            ]
            found = [m for m in moments if m is not None]
            if not all([m.dtype is x.dtype and m.is_cpu and m.is_contiguous() for m in found]):
                # functional_call has replaced buffers, or only the parameters were converted
                return None
            inputs = Inputs(x, sizes, h, c[0] if c else None, *parameters, *moments, *NO_MASKS)  # type: ignore[arg-type]
            check_shapes(inputs, self.options.gates)
            x, *last = run_forward(inputs, self.options, save=False)[: 2 + len(c)]
            final.append(last)
        dispatch.calls["cpu"] += 1
        if len(final) == 1:
            # in place: a view would not allow detach_()
            states = tuple([s.unsqueeze_(0) for s in final[0]])
        else:
            states = tuple([torch.stack(parts) for parts in zip(*final, strict=True)])
        output = x.transpose(0, 1) if layer.batch_first else x
        return output, states if len(states) > 1 else states[0]
