"""What the laws are tested on: cells x norms x lengths x directions x layers x seeds, float64."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence, pad_sequence

import definition
import rnnorm
from own_cell import IndRNN

TORCH = ("RNN_TANH", "RNN_RELU", "LSTM", "GRU")
OPTIONS = {
    "LSTM-output": {"peephole": "output"},
    "LSTM-all": {"peephole": "all"},
    "LSTM-full": {"peephole": "full"},
    "GRU-before": {"reset_after": False},
    "GRU-both": {"reset_after": "both"},
}
# the last is a cell as a user may write it
MORE = {
    "LiGRU": rnnorm.LiGRU,
    "IndRNN-tanh": partial(rnnorm.IndRNN, nonlinearity="tanh"),
    "MIRNN": rnnorm.MIRNN,
    "IndRNN": partial(rnnorm.Recurrent, IndRNN()),
}
# every site takes a statistic at every step
STEADY = (*TORCH, *OPTIONS, *MORE)
CELLS = (*STEADY, "ClockworkRNN")
# without a sum of input and recurrent term
NO_JOINT = ("GRU", "IndRNN")


def law(max_examples: int):
    """Settings of a property test: the same examples in every run, no time limit for each."""
    return settings(max_examples=max_examples, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True)
class Case:
    """One layer stack and one minibatch for it; everything else follows from the seed."""

    cell: str = "LSTM"
    norm: object = None
    lengths: tuple[int, ...] = (4, 3, 3, 2)
    num_layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    proj_size: int = 0
    given_state: bool = True
    learnt_state: bool = False
    seed: int = 0

    input_size = 3
    hidden_size = 4

    @property
    def is_lstm(self) -> bool:
        return self.cell.startswith("LSTM")

    def module(self) -> torch.nn.Module:
        """The layer, with parameters drawn anew: no gamma is uniform, no beta zero."""
        torch.manual_seed(self.seed)
        options: dict = {
            "num_layers": self.num_layers,
            "bidirectional": self.bidirectional,
            "bias": self.bias,
            "learn_initial_state": self.learnt_state,
            "initial_noise": 0.0,
            "norm": self.norm,
            "dtype": torch.float64,
        }
        if self.cell == "ClockworkRNN":
            cls = partial(rnnorm.ClockworkRNN, periods=(1, 3))
        elif self.cell in MORE:
            cls = MORE[self.cell]
        elif self.cell.startswith("RNN"):
            cls, options["nonlinearity"] = rnnorm.RNN, self.cell.removeprefix("RNN_").lower()
        else:
            cls = rnnorm.LSTM if self.is_lstm else rnnorm.GRU
            options |= OPTIONS.get(self.cell, {})
        if self.proj_size:
            options["proj_size"] = self.proj_size
        module = cls(self.input_size, self.hidden_size, **options)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                # a vector of recurrent weights is an IndRNN's: none is near 0
                if "gamma" in name or (name.startswith("weight_hh") and parameter.dim() == 1):
                    parameter.uniform_(0.3, 0.9)
                elif name.startswith(("alpha", "beta")) or name in ("h_0", "c_0"):
                    parameter.normal_()
        return module

    def sequences(self) -> list[Tensor]:
        """One leaf tensor for each sequence."""
        torch.manual_seed(self.seed + 1)
        return [
            torch.randn(n, self.input_size, dtype=torch.float64).requires_grad_()
            for n in self.lengths
        ]

    def hx(self) -> tuple[Tensor, ...] | None:
        if not self.given_state:
            return None
        torch.manual_seed(self.seed + 2)
        rows = self.num_layers * (2 if self.bidirectional else 1)
        widths = [self.proj_size or self.hidden_size]
        if self.is_lstm:
            widths.append(self.hidden_size)
        return tuple(
            torch.randn(rows, len(self.lengths), width, dtype=torch.float64).requires_grad_()
            for width in widths
        )


def trained(case: Case, minibatches: int = 2) -> torch.nn.Module:
    """The module in evaluation, with populations drawn rather than trained: nothing is near 0, 1.

    As many rows are counted as a minibatch of this case would count.
    """
    module = case.module()
    if any(True for _ in module.buffers()):
        for seed in range(minibatches):
            other = replace(case, seed=case.seed + 10 * (seed + 1))
            run(module, other.sequences(), other.hx())
    return module.eval()


def single(hx: tuple[Tensor, ...] | None):
    """The form in which an RNN or GRU takes its state."""
    return hx[0] if hx is not None and len(hx) == 1 else hx


def tuple_of(state) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def cut(sequences, resets):
    """The pieces: row, whether it goes on from the given state, and frames."""
    for b, (sequence, reset) in enumerate(zip(sequences, resets, strict=True)):
        starts = [t for t in range(len(sequence)) if t == 0 or reset[t]]
        for start, stop in pairwise([*starts, len(sequence)]):
            yield b, start == 0 and not reset[0], sequence[start:stop]


def run(module, sequences, hx=None, step=0) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """The layer on a packed ragged list: the output of each sequence, and the final states."""
    packed = pack_sequence(list(sequences), enforce_sorted=False)
    output, state = module(packed, single(hx), step=step)
    assert isinstance(output, PackedSequence)
    padded, lengths = pad_packed_sequence(output, batch_first=True)
    return [rows[:n] for rows, n in zip(padded, lengths, strict=True)], tuple_of(state)


def run_padded(module, sequences, hx=None, step=0, *, value=float("nan"), extra=0):
    """The layer on a dense batch with `lengths`, padded with `value` and by `extra` frames more."""
    padded = pad_sequence(list(sequences), padding_value=value)
    padded = torch.nn.functional.pad(padded, (0, 0, 0, 0, 0, extra), value=value)
    lengths = torch.tensor([len(s) for s in sequences])
    output, state = module(padded, single(hx), lengths=lengths, step=step)
    return [output[:n, b] for b, n in enumerate(lengths.tolist())], tuple_of(state)


def gradients(module, sequences, hx, outputs, states, seed: int = 0) -> dict[str, Tensor]:
    """Gradient of a random linear function of all outputs, for everything that has one."""
    generator = torch.Generator().manual_seed(seed)
    leaves = dict(module.named_parameters())
    leaves |= {f"sequence {b}": s for b, s in enumerate(sequences)}
    leaves |= {f"state {n}": s for n, s in enumerate(hx or ())}
    loss = sum(
        (part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum()
        for part in [*outputs, *states]
    )
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }


def assert_close(name: str, got: Tensor, want: Tensor, tolerance: float = 1e-8) -> None:
    """Relative root-mean-square error, with the tensor's name in the message."""
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    assert torch.isfinite(got).all(), f"{name} is not finite"
    error, scale = ((t.double() ** 2).mean().sqrt().item() for t in (got - want, want))
    assert error <= tolerance * (scale + 1e-2), f"{name}: error {error:.2g}, scale {scale:.2g}"


def assert_all_close(got, want, tolerance: float = 1e-8) -> None:
    """Compare two dictionaries, or two sequences, of tensors."""
    if not isinstance(want, dict):
        got, want = dict(enumerate(got)), dict(enumerate(want))
    assert got.keys() == want.keys()
    for name in want:
        assert_close(str(name), got[name].detach(), want[name].detach(), tolerance)


def buffers(module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def assert_population(
    module, minibatches: list[dict[str, list]], norm, updated: bool = False
) -> None:
    """The populations hold what the estimator makes of the definition's statistics.

    After `update_bn` they do without the steps of few rows.
    """
    children = [name for name, _ in module.named_children()]
    names = {n.removeprefix("population_") for n in children if n.startswith("population_")}
    assert names == set().union(*minibatches)
    for name in names:
        site = definition.field(name)
        whole = definition.sites(norm, definition.kind(module))[site] == "sequence"
        spec = definition.spec_of(norm, site)
        want = definition.population(
            [minibatch[name] for minibatch in minibatches],
            spec.momentum,
            shared=spec.population == "shared",
            horizon=None if whole else spec.horizon,
        )
        if updated:
            want = definition.without_rare_steps(want, spec.min_rows)
        assert_estimates(name, module.get_submodule(f"population_{name}"), want)


def assert_estimates(name: str, population, want: dict[int, definition.Estimate]) -> None:
    counted = [row for row, count in enumerate(population.rows.tolist()) if count]
    assert counted == sorted(want), f"{name}: rows {counted} are counted, not {sorted(want)}"
    for row, estimate in want.items():
        assert population.rows[row] == estimate.rows
        assert population.num_batches_tracked[row] == estimate.batches
        assert_close(f"{name}.mean[{row}]", population.mean[row], estimate.mean.detach())
        assert_close(f"{name}.var[{row}]", population.var[row], estimate.var.detach())


@st.composite
def batch_norms(draw, cell: str, **fixed):
    """Any `BatchNorm` that the cell accepts."""
    frame = st.sampled_from(["frame", "frame", None])
    options: dict = {
        "gamma": 0.5,
        "eps": draw(st.sampled_from([1e-5, 1e-3])),
        "momentum": draw(st.sampled_from([0.1, 1.0, None])),
        "population": draw(st.sampled_from(["per_step", "per_step", "shared"])),
        "horizon": draw(st.sampled_from([None, None, 1, 2, 8])),
        "min_rows": draw(st.sampled_from([2, 3, 8])),
    }
    if cell not in NO_JOINT and draw(st.integers(0, 3)) == 0:
        options |= {"joint": "frame", "input": None, "recurrent": None}
    else:
        scopes = ["frame", "sequence", "sequence", None]
        # which a Clockwork RNN does not know ahead
        scopes = [s for s in scopes if s != "sequence" or cell != "ClockworkRNN"]
        options["input"] = draw(st.sampled_from(scopes))
        options["recurrent"] = draw(frame) if options["input"] else "frame"
    if cell.startswith("LSTM"):
        options |= {"cell": draw(frame), "carry": draw(st.sampled_from([None, None, "frame"]))}
    return rnnorm.BatchNorm(**(options | fixed))


@st.composite
def row_norms(draw, cell: str):
    """Any `LayerNorm` or `RMSNorm` that the cell accepts."""
    on = st.booleans()
    options = {"input": draw(on), "recurrent": True, "eps": draw(st.sampled_from([1e-5, 1e-3]))}
    if cell not in NO_JOINT and draw(st.integers(0, 3)) == 0:
        options |= {"joint": True, "input": False, "recurrent": False}
    if cell.startswith("LSTM"):
        options |= {"cell": draw(on), "carry": draw(on)}
    options["over"] = draw(st.sampled_from([None, "term", "gate"]))
    return draw(st.sampled_from([rnnorm.LayerNorm, rnnorm.RMSNorm]))(**options)


@st.composite
def mixed_norms(draw, cell: str):
    """Any mapping of sites to specs that the cell accepts."""
    sites = {"recurrent", *draw(st.sampled_from([(), ("input",)]))}
    if cell not in NO_JOINT and draw(st.integers(0, 3)) == 0:
        sites = {"joint"}
    if cell.startswith("LSTM"):
        sites |= {site for site in ("cell", "carry") if draw(st.booleans())}
    min_rows, specs = draw(st.sampled_from([2, 3, 8])), {}
    for site in sorted(sites):
        options: dict = {"eps": draw(st.sampled_from([1e-5, 1e-3, 1e-2]))}
        kind = draw(st.sampled_from(["BatchNorm", "BatchNorm", "LayerNorm", "RMSNorm"]))
        if kind == "BatchNorm":
            options["momentum"] = draw(st.sampled_from([0.1, 1.0, None]))
            options["population"] = draw(st.sampled_from(["per_step", "shared"]))
            options["horizon"] = draw(st.sampled_from([None, 1, 2]))
            options["min_rows"] = min_rows
            if cell != "ClockworkRNN":
                options["input"] = draw(st.sampled_from(["frame", "sequence"]))
        else:
            options["over"] = draw(st.sampled_from([None, "term", "gate"]))
        specs[site] = getattr(rnnorm, kind)(**options)
    return specs


@st.composite
def any_case(draw, *, norms: str = "batch", dense: bool = False, cells=CELLS, **fixed):
    """A case whose minibatch has enough rows for a first statistic.

    Args:
        draw: hypothesis's.
        norms: "batch", "mixed", or "any" for these, norms of rows and none.
        dense: all sequences have one length.
        cells: the cells to draw from.
        **fixed: fields of the case, or of its BatchNorm, that are not drawn.
    """
    fields = Case.__dataclass_fields__
    cell = draw(st.sampled_from(cells))
    norm = draw(batch_norms(cell, **{k: v for k, v in fixed.items() if k not in fields}))
    kinds = {"batch": ["batch"], "mixed": ["mixed"], "any": ["batch", "mixed", "row", "none"]}
    kind = draw(st.sampled_from(kinds[norms]))
    if kind == "mixed":
        norm = draw(mixed_norms(cell))
    elif kind != "batch":
        norm = None if kind == "none" else draw(row_norms(cell))
    batch = draw(st.integers((2 if kind in ("batch", "mixed") else 1) + dense, 5))
    longest = st.integers(1, 5)
    lengths = [draw(longest)] * batch if dense else [draw(longest) for _ in range(batch)]
    case = Case(
        cell=cell,
        norm=norm,
        lengths=tuple(lengths),
        num_layers=draw(st.sampled_from([1, 1, 2])),
        bidirectional=draw(st.booleans()),
        bias=draw(st.booleans()),
        proj_size=2 if cell.startswith("LSTM") and draw(st.booleans()) else 0,
        given_state=draw(st.booleans()),
        learnt_state=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )
    return replace(case, **{k: v for k, v in fixed.items() if k in fields})
