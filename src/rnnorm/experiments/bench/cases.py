"""The cases of a check: which there are, their layers and data, and a kernel's results on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import groupby, zip_longest
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import rnnorm
from rnnorm.experiments.bench.layers import Shape
from rnnorm.kernels.call import Request
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.norm.presets import resolve
from rnnorm.norm.spec import BatchNorm, Norm

#: class and options of each cell
CELLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {}),
    "LSTM projected": ("LSTM", {"proj_size": 5}),
    "GRU": ("GRU", {}),
    "RNN": ("RNN", {}),
    "RNN relu": ("RNN", {"nonlinearity": "relu"}),
    "GRU both": ("GRU", {"reset_after": "both"}),
    "LiGRU": ("LiGRU", {}),
    "IndRNN": ("IndRNN", {"nonlinearity": "tanh"}),
}
#: norms by the name of a preset, or by what is normalised
NORMS: Mapping[str, str | Norm | None] = {
    "none": None,
    **{name: name for name in ("batch", "bn-e*", "laurent2015-frame", "laurent2015-sequence")},
    "recurrent": BatchNorm(input=None, cell=None),
    "joint": "joint",
    "joint and cell": BatchNorm(input=None, recurrent=None, joint="frame"),
    **{name: name for name in ("layer", "rms", "haste", "fastrnns", "sketch-rnn", "sligru")},
}
Mode = Literal["dense", "ragged", "evaluation", "ages", "resets"]
INPUTS = 7
#: the least units of a case; a projection has fewer
UNITS = 13
ROWS = (5, 100, 129, 300)
MODES: tuple[Mode, ...] = ("dense", "ragged", "evaluation", "ages")
# cells examined at 13 units alone: relu differs from tanh in one line of a kernel, and what the
# others have of their own does not depend on the number of units
SMALL = ("LSTM projected", "RNN relu", "GRU both", "LiGRU", "IndRNN")
# norms examined at every size; the others are examined at 13 units alone
WHOLE = ("none", "batch", "bn-e*", "joint and cell", "joint", "layer")
# far above the rounding of relu's input in float32, yet few cases have an input this near zero
_KINK = 1e-5


class Case(NamedTuple):
    """The names, shape and dtype that determine a drawn layer and its data.

    Attributes:
        cell: a name of ``CELLS``.
        norm: a name of ``NORMS``.
        mode: ``"dense"`` and ``"ragged"`` are training, ``"evaluation"`` is dense, and ``"ages"``
            is evaluation of a ragged batch whose rows begin at different steps. ``"resets"`` is
            training of a ragged batch whose rows begin anew at some of the frames.
        shape: shape of layer and data.
        dtype: dtype of layer and data.
    """

    cell: str
    norm: str
    mode: Mode
    shape: Shape
    dtype: torch.dtype = torch.float32

    @property
    def names(self) -> tuple[str, str]:
        """Return the names of the cell and the norm."""
        return self.cell, self.norm

    def __str__(self) -> str:
        return f"{self.mode} {self.shape} {str(self.dtype).removeprefix('torch.')}"


class Drawn(NamedTuple):
    """A layer and its data.

    Attributes:
        layer: a layer of one direction.
        leaves: input ``(T, B, I)`` and initial states, ``(1, B, ·)`` each.
        upstream: gradients of output and last states.
        lengths: ``(B,)`` on the CPU, or None for a dense batch.
        step: index of the first frame, of each row in evaluation with ages.
        reset: ``(T, B)`` bool, where rows begin anew, or None.
    """

    layer: SequenceLayer
    leaves: list[Tensor]
    upstream: list[Tensor]
    lengths: Tensor | None
    step: int | Tensor
    reset: Tensor | None = None

    def to(self, device: torch.device, dtype: torch.dtype) -> Drawn:
        """Copy the layer and its data to a device and dtype."""
        return self._replace(
            layer=deepcopy(self.layer).to(device, dtype),
            leaves=[leaf.to(device, dtype, copy=True) for leaf in self.leaves],
            upstream=[each.to(device, dtype) for each in self.upstream],
            step=self.step.to(device) if isinstance(self.step, Tensor) else self.step,
            reset=None if self.reset is None else self.reset.to(device),
        )

    def request(self, device: torch.device, dtype: torch.dtype) -> Request:
        """Return the kernel request that the layer would make on a device in a dtype."""
        return Request(
            self.layer.cell,
            self.layer.norm,
            device,
            dtype,
            projected=self.layer.proj_size > 0,
            padded=self.lengths is not None,
            training=self.layer.training,
        )

    def jittered(self, seed: int) -> Drawn:
        """Copy the case with weights, leaves and upstream gradients changed in their last bit."""
        copy = self._replace(layer=deepcopy(self.layer))
        generator = torch.Generator().manual_seed(seed)

        def jitter(tensor: Tensor) -> Tensor:
            """Change each entry by a random factor within machine epsilon of 1."""
            drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
            factor = 1 + torch.finfo(tensor.dtype).eps * (2 * drawn - 1)
            return (tensor.double() * factor).to(tensor.dtype)

        with torch.no_grad():
            for parameter in copy.layer.parameters():
                parameter.copy_(jitter(parameter))
        leaves, upstream = ([*map(jitter, each)] for each in (self.leaves, self.upstream))
        return copy._replace(leaves=leaves, upstream=upstream)

    def results(self, backend: str) -> dict[str, Tensor]:
        """Compute outputs, gradients and buffers on a backend.

        Returns:
            Output and last states; their gradients by leaves and parameters, as ``d name``; in
            training the population's buffers, in evaluation outputs without a gradient too.
        """
        leaves = [leaf.detach().requires_grad_() for leaf in self.leaves]
        names, parameters = zip(*self.layer.named_parameters(), strict=True)
        if self.layer.training:
            self.layer.reset_running_stats()
        with rnnorm.use_backend(backend):
            outputs = list(self.outputs(leaves))
            wanted = [*leaves, *parameters]
            gradients = torch.autograd.grad(outputs, wanted, self.upstream)
            found = dict(zip(("output", "h_n", "c_n"), outputs, strict=False))
            by = [*("input", "h_0", "c_0")[: len(leaves)], *names]
            found |= {f"d {name}": d for name, d in zip(by, gradients, strict=True)}
            if self.layer.training:
                found |= {name: kept.clone() for name, kept in self.layer.named_buffers()}
            else:
                with torch.no_grad():
                    alone = zip(("output", "h_n", "c_n"), self.outputs(leaves), strict=False)
                    found |= {f"{name} without a gradient": each for name, each in alone}
        return {name: tensor.detach() for name, tensor in found.items()}

    def outputs(self, leaves: list[Tensor]) -> Iterator[Tensor]:
        """Yield output and last states, on the backend in force."""
        x, *state = leaves
        hx: Any = state if len(state) > 1 else state[0]
        output, last = self.layer(x, hx, lengths=self.lengths, step=self.step, reset=self.reset)
        yield output
        yield from last if len(state) > 1 else [last]


def layers() -> list[tuple[str, str]]:
    """Return pairs of cell and norm, without norms that repeat another's sites and scope."""
    found: dict[object, tuple[str, str]] = {}
    for cell in CELLS:
        for name, norm in NORMS.items():
            try:
                layer = _layer(cell, norm, 1, UNITS)
            except ValueError:
                # a GRU has no joint site
                continue
            sites = tuple(
                [
                    (site, type(spec), spec.scope(site), *layer.cell.widths(site, UNITS, spec))
                    for site, spec in layer.cell.norms(layer.norm).items()
                ]
            )
            found.setdefault((cell, sites), (cell, name))
    return list(found.values())


def all_cases() -> Iterator[Case]:
    """Yield the cases that ``check`` examines: one of each layer, then a second of each, etc.

    The first few of a layer have different modes, numbers of rows, units and dtypes.
    """
    by_layer = [list(cases) for _, cases in groupby(_cases(), key=lambda case: case.names)]
    # a stride of five is coprime to four modes, and so mixes them
    spread = [[case for i in range(5) for case in cases[i::5]] for cases in by_layer]
    for each in zip_longest(*spread):
        yield from (case for case in each if case is not None)


def _cases() -> Iterator[Case]:
    """Yield the cases layer by layer."""
    for cell, norm in layers():
        # only batch norm's population depends on the time step
        spec = resolve(NORMS[norm])
        statistics = spec is not None and spec.takes_statistics
        modes: tuple[Mode, ...] = MODES if statistics else (*MODES[:3], "resets")
        whole = norm in WHOLE and cell not in SMALL
        for B in ROWS if whole else (5, 129):
            yield from (Case(cell, norm, mode, Shape(4, B, INPUTS, UNITS)) for mode in modes)
        if not whole:
            continue
        for B in ROWS:
            yield from (Case(cell, norm, mode, Shape(3, B, INPUTS, 128)) for mode in modes)
        if norm in ("batch", "layer"):
            for mode, B in zip(modes, (129, 100, 5, 5), strict=False):
                yield Case(cell, norm, mode, Shape(3, B, INPUTS, 1000))
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            yield from (
                Case(cell, norm, mode, Shape(4, 100, INPUTS, UNITS), dtype) for mode in modes[1:3]
            )


def draw(case: Case, seed: int = 0) -> Drawn:
    """Draw a case on the CPU, the same for equal seeds, with NaN in padded positions.

    A case with relu is drawn again while an input of relu is so near zero that rounding decides
    its sign.
    """
    drawn = _draw(case, seed)
    rectified = getattr(drawn.layer.cell, "nonlinearity", None) == "relu"
    while rectified and _nearest_to_a_kink(drawn) < _KINK:
        seed += 1000
        drawn = _draw(case, seed)
    return drawn


class _Rectified(TorchFunctionMode):
    """Mode that records the smallest absolute input of relu in ``least``."""

    least: float = math.inf

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, and record the inputs of relu."""
        if func is torch.relu:
            self.least = min(self.least, float(args[0].abs().nan_to_num(math.inf).min()))
        return func(*args, **(kwargs or {}))


def _nearest_to_a_kink(drawn: Drawn) -> float:
    """Return the smallest absolute input of relu in float64."""
    exact = drawn.to(torch.device("cpu"), torch.float64)
    seen = _Rectified()
    with seen, torch.no_grad(), rnnorm.use_backend("reference"):
        list(exact.outputs(exact.leaves))
    return seen.least


def _draw(case: Case, seed: int) -> Drawn:
    """Draw a case once."""
    T, B, inputs, H = case.shape[:4]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = _layer(case.cell, NORMS[case.norm], inputs, H)
        for name, parameter in layer.named_parameters():
            if name.startswith("gamma"):
                parameter.data.mul_(0.5 + torch.rand(parameter.shape))
            elif name.startswith("beta"):
                parameter.data.normal_(0.0, 0.1)
        layer.to(case.dtype)
        # of h and of the states beside it
        widths = [layer.proj_size or H, *[H] * (len(layer.cell.states) - 1)]

        def leaves(rows: int) -> list[Tensor]:
            """Draw an input and initial states of so many rows."""
            x, *state = torch.randn(T, rows, inputs), *[torch.randn(1, rows, w) / 2 for w in widths]
            return [each.to(case.dtype) for each in (x, *state)]

        own = leaves(B)
        upstream = [torch.randn(T, B, widths[0]), *[torch.randn(1, B, w) for w in widths]]
        lengths = None
        reset = torch.rand(T, B) < 0.2 if case.mode == "resets" else None
        if case.mode in ("ragged", "ages", "resets"):
            lengths = torch.randint(1, T + 1, (B,))
            lengths[0] = T
            own[0][torch.arange(T).unsqueeze(1) >= lengths] = math.nan
        step: int | Tensor = torch.randint(0, T, (B,)) if case.mode == "ages" else 0
        if case.mode in ("evaluation", "ages"):
            # estimate the population from more rows than the case may have
            more = Drawn(layer, leaves(32), [], None, 0)
            with torch.no_grad(), rnnorm.use_backend("reference"):
                list(more.outputs(more.leaves))
            layer.eval()
    upstream = [each.to(case.dtype) for each in upstream]
    return Drawn(layer, own, upstream, lengths, step, reset)


def _layer(cell: str, norm: str | Norm | None, inputs: int, H: int) -> SequenceLayer:
    """Build a layer of a cell with a norm."""
    name, options = CELLS[cell]
    # noise would hide a wrong result
    made = getattr(rnnorm, name)(inputs, H, norm=norm, initial_noise=0.0, **options)
    return cast(SequenceLayer, made)
