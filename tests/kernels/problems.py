"""One layer's tensors, and its results and gradients from any kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rnnorm import BatchNorm, LayerNorm, RMSNorm
from rnnorm.cells.cell import Weights
from rnnorm.cells.gru import GRU
from rnnorm.cells.indrnn import IndRNN
from rnnorm.cells.ligru import LiGRU
from rnnorm.cells.lstm import LSTM
from rnnorm.cells.rnn import RNN
from rnnorm.kernels import reference
from rnnorm.kernels.call import LayerCall, Mask
from rnnorm.norm.presets import resolve

PEEPHOLES = {f"LSTM-{seen}": LSTM(seen) for seen in ("output", "all")}
CELLS = {cell.name: cell for cell in (LSTM(), GRU(), RNN(), RNN("relu"))}
# cells that GPUs compute unasked by the reference
MORE_CELLS = {
    "GRU_BOTH": GRU("both"),
    "LiGRU": LiGRU(),
    "IndRNN_TANH": IndRNN("tanh"),
    "IndRNN_RELU": IndRNN(),
}
# the places where something is dropped: by step, by sequence, or as expected in evaluation
DROPOUTS = {
    "none": {},
    "zoneout": {"zoneout_h": "step", "zoneout_c": "step"},
    "zoneout-h": {"zoneout_h": "step"},
    "expectation": {"zoneout_h": "expected", "zoneout_c": "expected"},
    "candidate": {"candidate": "step"},
    "hidden": {"hidden": "sequence"},
    "every": {
        "hidden": "step",
        "candidate": "sequence",
        "zoneout_h": "sequence",
        "zoneout_c": "step",
    },
}
NORMS = {
    "none": None,
    "all": BatchNorm(),
    "sequence": BatchNorm(input="sequence"),
    "input": BatchNorm(recurrent=None, cell=None),
    "recurrent": BatchNorm(input=None, cell=None),
    "cell": BatchNorm(input=None, recurrent=None),
    "joint": BatchNorm(input=None, recurrent=None, joint="frame", cell=None),
    "joint-cell": BatchNorm(input=None, recurrent=None, joint="frame"),
    "layer": LayerNorm(),
    "layer-input": LayerNorm(recurrent=False, cell=False),
    "layer-recurrent": LayerNorm(input=False, cell=False),
    "layer-cell": LayerNorm(input=False, recurrent=False),
}
_APART = {"input": False, "recurrent": False}
# norms that the CPU kernel alone computes
MORE_NORMS = {
    "batch-carry": BatchNorm(cell=None, carry="frame"),
    "layer-joint": LayerNorm(**_APART, joint=True, eps=1e-3),
    "layer-carry": LayerNorm(cell=False, carry=True),
    "layer-joint-carry": LayerNorm(**_APART, joint=True, cell=False, carry=True),
    "layer-term": LayerNorm(over="term"),
    "layer-gate": LayerNorm(over="gate"),
    "layer-joint-gate": LayerNorm(**_APART, joint=True, over="gate", eps=1e-3),
    "rms": RMSNorm(),
    "rms-carry-gate": RMSNorm(cell=False, carry=True, over="gate"),
    "rms-joint-term": RMSNorm(**_APART, joint=True, over="term"),
    "mixed": resolve({"input": BatchNorm(input="sequence"), "recurrent": LayerNorm(eps=1e-3)}),
    "mixed-input": resolve(
        {"input": "layer", "recurrent": BatchNorm(eps=1e-3), "cell": BatchNorm(eps=1e-3)}
    ),
    "mixed-rms": resolve({"input": RMSNorm(over="gate"), "recurrent": LayerNorm(over="term")}),
    "mixed-cell": resolve({"input": "layer", "recurrent": RMSNorm(over="gate"), "cell": "batch"}),
    "mixed-carry": resolve({"joint": "batch", "carry": "rms"}),
}


def lengths_to_sizes(lengths):
    return torch.tensor([sum(n > t for n in lengths) for t in range(max(lengths))])


@dataclass
class Problem:
    """Drawn in float64; ``age`` says whose constants: "shared" by all rows, or each row's own.

    From the step ``apart`` on all steps share one. A kernel is given them without repetition if it
    is not the definition.
    """

    cell: str
    norm: str
    shape: tuple[int, int, int, int]
    lengths: list[int] | None = None
    min_rows: int | None = 2
    age: str = "shared"
    apart: int | None = None
    bias: bool = True
    seed: int = 0
    dropout: str = "none"
    # share of the frames before which a row begins anew
    resets: float = 0.0
    all_states: bool = False
    # units of h after a projection, 0 without
    proj_size: int = 0
    device: torch.device | str = "cpu"
    leaves: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self):
        T, B, inputs, H = self.shape
        cell = (CELLS | PEEPHOLES | MORE_CELLS)[self.cell]
        norm = (NORMS | MORE_NORMS)[self.norm]
        self.its_cell, self.its_norm = cell, norm
        self.sites = cell.active_sites(norm)
        generator = torch.Generator().manual_seed(self.seed)

        def draw(*size):
            drawn = torch.randn(*size, generator=generator, dtype=torch.float64)
            return drawn.to(self.device)

        F, R = sum(cell.gates) * H, self.proj_size or H
        leaves = {"x": draw(T, B, inputs), "h0": 0.3 * draw(B, R)}
        if cell.name == "LSTM":
            leaves["c0"] = draw(B, H)
        shape = (F, R) if self.proj_size else cell.weights(inputs, H, False)["weight_hh"]
        leaves |= {"weight_ih": draw(F, inputs) / inputs**0.5, "weight_hh": draw(*shape) / H**0.5}
        if self.proj_size:
            leaves["weight_hr"] = draw(R, H) / H**0.5
        if self.bias:
            leaves |= {"bias_ih": 0.2 * draw(F), "bias_hh": 0.2 * draw(F)}
        names = ("weight_ci", "weight_cf", "weight_co")
        self.peepholes = [name for name in names if name in cell.weights(inputs, H, False)]
        leaves |= {name: draw(H) for name in self.peepholes}
        self.constants = {}
        for site in self.sites:
            features = sum(cell.blocks(site, H))
            leaves[f"gamma_{site}"] = 0.3 + 0.1 * draw(features)
            if not norm.of(site).takes_statistics:
                continue
            whole = norm.scope(site) == "sequence"
            rows = B if self.age == "own" and not whole else 1
            size = (1 if whole else min(T, self.apart or T), rows, features)
            self.constants[site] = (0.2 * draw(*size), 0.5 + draw(*size).abs())
        self.shifted = [site for site in ("cell", "carry") if site in self.sites]
        leaves |= {f"beta_{site}": 0.1 * draw(H) for site in self.shifted}
        self.leaves = leaves
        self.sizes = None if self.lengths is None else lengths_to_sizes(self.lengths)
        self.upstream = [draw(T, B, R), draw(B, R), draw(B, H), draw(T, B, H)]
        self.reset = None
        if self.resets:
            self.reset = (torch.rand((T, B), generator=generator) < self.resets).to(self.device)
        self.masks = {}
        for place, kind in DROPOUTS[self.dropout].items():
            if place not in cell.dropouts:
                continue
            width = R if place in ("hidden", "zoneout_h") else H
            size = {"step": (T, B, width), "sequence": (1, B, width), "expected": (1, 1, 1)}[kind]
            kept = (torch.rand(size, generator=generator) < 0.7).to(self.device)
            if kind == "expected":
                self.masks[place] = Mask(torch.ones_like(kept), 0.3)
            else:
                self.masks[place] = Mask(kept, 1.0 if place.startswith("zone") else 1 / 0.7)

    def call(self, kernel, leaves, masks=None):
        """The arguments of a kernel."""
        own = {name: leaves[name] for name in self.peepholes}
        weights = Weights(*(leaves.get(name) for name in Weights._fields[:-1]), own)
        dtype = torch.promote_types(leaves["x"].dtype, torch.float32)
        constants = {site: tuple(m.to(dtype) for m in c) for site, c in self.constants.items()}
        if kernel is reference.layer:
            steps = torch.arange(len(leaves["x"]), device=self.device)
            for site, pair in constants.items():
                constants[site] = tuple(m[steps.clamp(max=len(m) - 1)] for m in pair)
        return LayerCall(
            self.its_cell,
            self.its_norm,
            leaves["x"],
            self.sizes,
            tuple(leaves[name] for name in ("h0", "c0") if name in leaves),
            weights,
            {site: leaves[f"gamma_{site}"] for site in self.sites},
            {site: leaves[f"beta_{site}"] for site in self.shifted},
            constants,
            self.min_rows,
            masks=self.masks if masks is None else masks,
            reset=self.reset,
            all_states=self.all_states,
        )

    def run(self, kernel, leaves, masks=None):
        """Output and final states, then the moments taken."""
        output, state, moments, states = kernel(self.call(kernel, leaves, masks))
        return (output, *state, *states[1:]), moments

    def results(self, kernel, dtype, poison=False):
        """Everything that a kernel computes, gradients as ``d name``."""
        leaves = {name: leaf.to(dtype) for name, leaf in self.leaves.items()}
        masks = dict(self.masks)
        if poison and self.sizes is not None:
            leaves["x"] = leaves["x"].clone()
            masks = {
                place: mask._replace(drawn=mask.drawn.clone()) for place, mask in masks.items()
            }
            for t, n in enumerate(self.sizes):
                leaves["x"][t, n:] = torch.nan
                for mask in masks.values():
                    if len(mask.drawn) > 1:
                        mask.drawn[t, n:].logical_not_()
        for leaf in leaves.values():
            leaf.requires_grad_()
        outputs, moments = self.run(kernel, leaves, masks)
        loss = sum((o * u.to(o)).sum() for o, u in zip(outputs, self.upstream, strict=False))
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        found = dict(zip(("output", "h_n", "c_n", "all_c"), outputs, strict=False))
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            found[f"d {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
        for site, pair in moments.items():
            found[f"mean of {site}"], found[f"variance of {site}"] = pair
        return {name: tensor.detach() for name, tensor in found.items()}


def assert_same(found, expected, tolerance):
    """Compares by relative root mean square, by name."""
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        got = found[name].double()
        assert got.shape == want.shape, name
        assert got.isfinite().all(), f"{name} is not finite"
        scale = want.square().mean().sqrt() + 1e-3
        error = float((got - want).square().mean().sqrt() / scale)
        assert error <= tolerance, f"{name} is off by {error:.1e} of its size"


def twice(problem, kernel):
    """Gradients, then those of a function of them, by what was given to backward too."""
    leaves = [leaf.requires_grad_() for leaf in problem.leaves.values()]
    outputs, _ = problem.run(kernel, problem.leaves)
    upstream = [u.requires_grad_() for u in problem.upstream[: len(outputs)]]
    options = {"allow_unused": True, "materialize_grads": True}
    first = torch.autograd.grad(outputs, leaves, upstream, create_graph=True, **options)
    loss = sum(gradient.square().sum() for gradient in first)
    return first, torch.autograd.grad(loss, [*leaves, *upstream], **options)


def errors(found, expected):
    """By name, relative to the root mean square."""
    return {
        name: float((found[name].double() - want).norm() / (want.norm() + 1e-3))
        for name, want in expected.items()
    }


def assert_about_as_exact(problem, layer, dtype):
    """A kernel in fewer digits is about as exact as the reference; return its results."""
    for name in problem.leaves:
        problem.leaves[name] = problem.leaves[name].to(dtype).double()
    exact = problem.results(reference.layer, torch.float64)
    found = problem.results(layer, dtype)
    theirs = errors(problem.results(reference.layer, dtype), exact)
    for name, error in errors(found, exact).items():
        bound = 4 * theirs[name] + torch.finfo(dtype).eps
        assert error <= bound, f"{name} is off by {error:.1e}, the reference by {theirs[name]:.1e}"
    return found
