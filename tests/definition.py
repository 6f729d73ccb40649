"""The definition: what a normalised recurrent network computes, over ragged lists of sequences.

Slow, plain and in no way derived from the implementation. A minibatch is a list of sequences, each
`(length, input_size)`, with no padding anywhere; time is a Python loop, a batch is a list of rows.
The parameters and population statistics are those of an `rnnorm` layer, read by name.

`network` runs all layers and directions and also tells which statistics were taken.
`population` is the estimator: what is kept of the statistics of a list of minibatches.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rnnorm import BatchNorm, RMSNorm


class Statistic(NamedTuple):
    """Mean and biased variance of a site over `rows` rows at `step` (0 for a whole sequence)."""

    step: int
    rows: int
    mean: Tensor
    var: Tensor


class Result(NamedTuple):
    """What a network gives: by sequence, by layer and direction, by site."""

    outputs: list[Tensor]  # for each sequence (length, directions * H_out)
    states: tuple[Tensor, ...]  # h_n (layers * directions, B, H_out); for an LSTM also c_n
    statistics: dict[str, list[Statistic]]  # by "{site}_l{k}{_reverse}"; empty in evaluation


def product(weight: Tensor, rows: Tensor) -> Tensor:
    return rows @ weight.T


def pre_activation(p, x, h, normalise):
    """BN(W_x x) + BN(W_h h) + b, or under joint BN(W_x x + W_h h) + b."""
    z = normalise("input", product(p("weight_ih"), x))
    z = z + normalise("recurrent", product(p("weight_hh"), h))
    z = normalise("joint", z)
    return z if p("bias_ih") is None else z + p("bias_ih") + p("bias_hh")


def rnn(activation: Callable[[Tensor], Tensor]):
    def step(p, x, state, normalise):
        (h,) = state
        return (activation(pre_activation(p, x, h, normalise)),)

    return step


def peephole(weight, c):
    return weight * c if weight.dim() == 1 else product(weight, c)


def lstm(p, x, state, normalise):
    h, c = state
    i, f, g, o = pre_activation(p, x, h, normalise).chunk(4, dim=-1)
    if p("weight_ci") is not None:
        i, f = i + peephole(p("weight_ci"), c), f + peephole(p("weight_cf"), c)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    c = normalise("carry", c)  # in place: the next step and c_n see it
    if p("weight_co") is not None:
        o = o + peephole(p("weight_co"), c)
    h = o.sigmoid() * normalise("cell", c).tanh()  # a copy: the carried c stays as it is
    if p("weight_hr") is not None:
        h = product(p("weight_hr"), h)
    return h, c


def gru(p, x, state, normalise):
    (h,) = state
    x_r, x_z, x_n = normalise("input", product(p("weight_ih"), x)).chunk(3, dim=-1)
    h_r, h_z, h_n = normalise("recurrent", product(p("weight_hh"), h)).chunk(3, dim=-1)
    if p("bias_ih") is not None:
        b_r, b_z, b_n = p("bias_ih").chunk(3)
        x_r, x_z, x_n = x_r + b_r, x_z + b_z, x_n + b_n
        b_r, b_z, b_n = p("bias_hh").chunk(3)
        h_r, h_z, h_n = h_r + b_r, h_z + b_z, h_n + b_n
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    return ((1 - z) * n + z * h,)


def gru_before(p, x, state, normalise):
    (h,) = state
    H = h.shape[-1]
    b = p("bias_ih") + p("bias_hh") if p("bias_ih") is not None else torch.zeros(3 * H)
    x = normalise("input", product(p("weight_ih"), x))
    rz = x[:, : 2 * H] + normalise("recurrent", product(p("weight_hh")[: 2 * H], h))
    r, z = (normalise("joint", rz) + b[: 2 * H]).sigmoid().chunk(2, dim=-1)
    n = normalise("recurrent_candidate", product(p("weight_hh")[2 * H :], r * h))
    n = (normalise("joint_candidate", x[:, 2 * H :] + n) + b[2 * H :]).tanh()
    return ((1 - z) * n + z * h,)


def gru_both(p, x, state, normalise):
    (h,) = state
    r, z, n = pre_activation(p, x, h, normalise).chunk(3, dim=-1)
    r, z, n = r.sigmoid(), z.sigmoid(), (r.sigmoid() * n).tanh()
    return ((1 - z) * n + z * h,)


def ligru(activation: Callable[[Tensor], Tensor]):
    def step(p, x, state, normalise):
        (h,) = state
        z, n = pre_activation(p, x, h, normalise).chunk(2, dim=-1)
        z = z.sigmoid()
        return (z * h + (1 - z) * activation(n),)

    return step


def indrnn(activation: Callable[[Tensor], Tensor]):
    def step(p, x, state, normalise):
        (h,) = state
        u = p("weight_hh") if p("u") is None else p("u")
        z = normalise("input", product(p("weight_ih"), x)) + normalise("recurrent", u * h)
        z = normalise("joint", z)
        return (activation(sum((b for b in map(p, ("bias_ih", "bias_hh")) if b is not None), z)),)

    return step


def mirnn(p, x, state, normalise):
    (h,) = state
    x_term = normalise("input", product(p("weight_ih"), x))
    h_term = normalise("recurrent", product(p("weight_hh"), h))
    z = p("alpha") * x_term * h_term + p("beta_1") * h_term + p("beta_2") * x_term
    z = normalise("joint", z)
    return ((z if p("bias_ih") is None else z + p("bias_ih") + p("bias_hh")).tanh(),)


def clockwork(p, x, state, normalise, ages, periods):
    (h,) = state
    n = h.shape[-1] // len(periods)
    new = h.clone()
    for k, period in enumerate(periods):
        moving = [row for row, age in enumerate(ages) if age % period == 0]
        if moving:
            mine = slice(k * n, (k + 1) * n)
            slower = torch.arange(h.shape[-1]) >= k * n  # its own units, and those after them
            z = normalise(f"input_period{period}", product(p("weight_ih")[mine], x))
            h_term = product(p("weight_hh")[mine] * slower, h)
            z = z + normalise(f"recurrent_period{period}", h_term)
            z = normalise(f"joint_period{period}", z)
            z = z if p("bias_ih") is None else z + (p("bias_ih") + p("bias_hh"))[mine]
            new[moving, mine] = z.tanh()[moving]
    return (new,)


CELLS = {
    "RNN_TANH": rnn(torch.tanh),
    "RNN_RELU": rnn(torch.relu),
    "LSTM": lstm,
    "GRU": gru,
    "GRU(reset_after=False)": gru_before,
    "GRU(reset_after='both')": gru_both,
    "LiGRU": ligru(torch.relu),
    "LiGRU(tanh)": ligru(torch.tanh),
    "IndRNN": indrnn(torch.relu),
    "IndRNN(tanh)": indrnn(torch.tanh),
    "MIRNN": mirnn,
}


def kind(module) -> str:
    """Which of the cells above a module has; those of an LSTM differ in their weights."""
    reset_after = module.cell.reset_after if module.mode == "GRU" else True
    if module.mode in ("LiGRU", "IndRNN") and getattr(module.cell, "nonlinearity", "") == "tanh":
        return f"{module.mode}(tanh)"
    return module.mode if reset_after is True else f"GRU({reset_after=})"


def field(site: str) -> str:
    """The name in a spec of "input_period4" is "input"."""
    return site.split("_")[0]


def spec_of(norm, site: str):
    """The spec that normalises a site, where each site may have one of its own."""
    return norm.get(field(site)) if isinstance(norm, dict) else norm


def sites(norm, mode: str) -> dict[str, object]:
    """The fields that are normalised, with their scope; a cell without a c has no cell site."""
    names = ("input", "recurrent", "joint", "cell", "carry")
    scopes = {name: getattr(spec_of(norm, name), name, None) for name in names}
    if isinstance(norm, dict):  # which says itself what is normalised
        scopes = {name: scopes[name] or True for name in norm}
    absent = () if mode == "LSTM" else ("cell", "carry")
    return {name: scope for name, scope in scopes.items() if scope and name not in absent}


def moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over the rows."""
    mean = rows.mean(0)
    return mean, ((rows - mean) ** 2).mean(0)


def population_row(population, step: int) -> tuple[Tensor, Tensor] | None:
    """The last row with a count up to the step, else the first; None before any statistic."""
    counted = [row for row, count in enumerate(population.rows.tolist()) if count > 0]
    if not counted:
        return None
    row = max((row for row in counted if row <= step), default=counted[0])
    return population.mean[row], population.var[row]


def layer_norm(part: Tensor, eps: float) -> Tensor:
    """Each row by its own mean and variance."""
    var, mean = torch.var_mean(part, -1, unbiased=False, keepdim=True)
    return (part - mean) / (var + eps).sqrt()


def rms_norm(part: Tensor, eps: float) -> Tensor:
    """Each row by its own root mean square."""
    return part / ((part**2).sum(-1, keepdim=True) / part.shape[-1] + eps).sqrt()


def groups(over: str | None, width: int, H: int, mode: str) -> list[int]:
    """The widths of the parts of a term that each have statistics of their own."""
    if over == "gate" and width > H:
        return [H] * (width // H)
    # r and z together, n apart
    return [2 * H, H] if over is None and mode == "GRU" and width == 3 * H else [width]


class Normaliser:
    """The norm of one layer in one direction; collects the statistics it takes."""

    def __init__(self, module, norm, suffix: str, steps: list[int], frames: list[Tensor]):
        self.module, self.norm, self.suffix, self.steps = module, norm, suffix, steps
        self.sites = sites(norm, kind(module))
        self.frames = frames  # the layer's input, for the sequence scope
        self.taken: dict[str, list[Statistic]] = {}

    def parameter(self, name: str) -> Tensor | None:
        return getattr(self.module, f"{name}_{self.suffix}", None)

    def __call__(self, site: str, z: Tensor, t: int, active: list[int]) -> Tensor:
        """Normalise z, whose rows are the active sequences at step t of this call."""
        if field(site) not in self.sites:
            return z
        gamma, beta = self.parameter(f"gamma_{site}"), self.parameter(f"beta_{site}")
        spec = spec_of(self.norm, site)
        if isinstance(spec, BatchNorm):
            mean, var = self.moments(site, z, t, active)
            z = gamma * (z - mean) / (var + spec.eps).sqrt()
        else:
            of_part = rms_norm if isinstance(spec, RMSNorm) else layer_norm
            widths = groups(spec.over, z.shape[-1], self.module.hidden_size, self.module.mode)
            parts = [of_part(part, spec.eps) for part in z.split(widths, dim=-1)]
            z = gamma * torch.cat(parts, dim=-1)
        return z if beta is None else z + beta

    def moments(self, site: str, z: Tensor, t: int, active: list[int]) -> tuple[Tensor, Tensor]:
        if not self.module.training:
            rows = [self.constants(site, self.steps[b] + t, z) for b in active]
            return torch.stack([mean for mean, _ in rows]), torch.stack([var for _, var in rows])
        taken = self.taken.setdefault(site, [])
        whole = self.sites[field(site)] == "sequence"
        if whole and taken:  # one statistic, whichever step asks first
            return taken[0].mean, taken[0].var
        if whole:
            z = product(self.parameter("weight_ih"), torch.cat(self.frames))
        first = len(z) if whole else len(self.frames)  # rows at the first step of the call
        if len(z) >= max(2, min(spec_of(self.norm, site).min_rows, first)):
            step = 0 if whole else self.steps[0] + t
            taken.append(Statistic(step, len(z), *moments(z)))
            return taken[-1].mean, taken[-1].var
        if taken:
            return taken[-1].mean.detach(), taken[-1].var.detach()
        population = self.module.get_submodule(f"population_{site}_{self.suffix}")
        row = population_row(population, self.steps[0] + t)
        if row is None:
            raise ValueError(f"{len(z)} rows at step {t}, and no statistic yet")
        return row

    def constants(self, site: str, step: int, z: Tensor) -> tuple[Tensor, Tensor]:
        population = self.module.get_submodule(f"population_{site}_{self.suffix}")
        row = population_row(population, step)
        return row or (torch.zeros_like(z[0]), torch.ones_like(z[0]))


def direction(module, norm, suffix, sequences, state, steps):
    """One layer in one direction: rows are aligned at their own first frame and drop out."""
    normaliser = Normaliser(module, norm, suffix, steps, sequences)
    clocked = module.mode == "ClockworkRNN"
    cell = None if clocked else CELLS[kind(module)]
    state = [list(part) for part in state]  # one row for each sequence
    outputs: list[list[Tensor]] = [[] for _ in sequences]
    for t in range(max(len(sequence) for sequence in sequences)):
        active = [b for b, sequence in enumerate(sequences) if t < len(sequence)]
        if clocked:
            ages, periods = [steps[b] + t for b in active], module.cell.periods
            cell = partial(clockwork, ages=ages, periods=periods)
        new = cell(
            normaliser.parameter,
            torch.stack([sequences[b][t] for b in active]),
            tuple(torch.stack([part[b] for b in active]) for part in state),
            lambda site, z, t=t, active=active: normaliser(site, z, t, active),
        )
        for part, rows in zip(state, new, strict=True):
            for b, row in zip(active, rows, strict=True):
                part[b] = row
        for b in active:
            outputs[b].append(state[0][b])
    state = tuple(torch.stack(part) for part in state)
    return [torch.stack(rows) for rows in outputs], state, normaliser.taken


def initial_state(module, batch: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The learnt states where there are some, else zeros (the noise of training is not here)."""
    rows = module.num_layers * (2 if module.bidirectional else 1)
    widths = [module.proj_size or module.hidden_size]
    if module.mode == "LSTM":
        widths.append(module.hidden_size)
    learnt = [getattr(module, name, None) for name in ("h_0", "c_0")]
    return tuple(
        torch.zeros(rows, batch, width, dtype=dtype)
        if parameter is None
        else parameter.unsqueeze(1).expand(rows, batch, width)
        for width, parameter in zip(widths, learnt, strict=False)
    )


def network(
    module,
    norm,
    sequences: Sequence[Tensor],
    hx: tuple[Tensor, ...] | None = None,
    step: int | Sequence[int] = 0,
) -> Result:
    """All layers and directions, in the mode (training or evaluation) that the module is in.

    Args:
        module: an `rnnorm.RNN`, `LSTM` or `GRU`; its parameters and populations are read by name.
        norm: the `BatchNorm`, `LayerNorm`, `RMSNorm`, dict of these or None it was built with.
        sequences: a list of `(length, input_size)`, in any order.
        hx: `(h_0,)` or `(h_0, c_0)`, each `(layers * directions, B, .)`.
        step: the age of the first frame; in evaluation one for each sequence is accepted.

    Raises:
        ValueError: a step of training has too few rows, and no earlier statistic can serve.
    """
    directions = 2 if module.bidirectional else 1
    steps = [step] * len(sequences) if isinstance(step, int) else list(step)
    hx = initial_state(module, len(sequences), sequences[0].dtype) if hx is None else hx
    final: list[tuple[Tensor, ...]] = []
    statistics: dict[str, list[Statistic]] = {}
    layer_input = list(sequences)
    for k in range(module.num_layers):
        layer_output = []
        for reverse in range(directions):
            suffix = f"l{k}" + "_reverse" * reverse
            state = tuple(part[k * directions + reverse] for part in hx)
            turned = [sequence.flip(0) if reverse else sequence for sequence in layer_input]
            outputs, state, taken = direction(module, norm, suffix, turned, state, steps)
            layer_output.append([output.flip(0) if reverse else output for output in outputs])
            final.append(state)
            statistics |= {f"{site}_{suffix}": list_ for site, list_ in taken.items()}
        layer_input = [torch.cat(parts, dim=-1) for parts in zip(*layer_output, strict=True)]
    return Result(layer_input, tuple(map(torch.stack, zip(*final, strict=True))), statistics)


class Estimate(NamedTuple):
    """What a population keeps of one step: unbiased variance, and what has been counted."""

    mean: Tensor
    var: Tensor
    rows: int
    batches: int


def unbiased(statistic: Statistic) -> Tensor:
    return statistic.var * statistic.rows / (statistic.rows - 1)


def by_step(minibatch: list[Statistic]) -> dict[int, Estimate]:
    """Population "per_step": every step is an estimate of its own."""
    return {s.step: Estimate(s.mean, unbiased(s), s.rows, 1) for s in minibatch}


def over_steps(minibatch: list[Statistic]) -> dict[int, Estimate]:
    """Population "shared": one estimate, the row-weighted mean of those of the steps."""
    rows = sum(s.rows for s in minibatch)
    mean = sum(s.rows * s.mean for s in minibatch) / rows
    var = sum(s.rows * unbiased(s) for s in minibatch) / rows
    return {0: Estimate(mean, var, rows, 1)}


def moving_average(estimates: list[Estimate], momentum: float) -> Estimate:
    """The n-th minibatch weighs max(momentum, 1/n): the first is taken as it is."""
    mean, var = torch.zeros_like(estimates[0].mean), torch.ones_like(estimates[0].var)
    for n, new in enumerate(estimates, start=1):
        weight = max(momentum, 1 / n)
        mean = (1 - weight) * mean + weight * new.mean
        var = (1 - weight) * var + weight * new.var
    return Estimate(mean, var, sum(e.rows for e in estimates), len(estimates))


def cumulative_average(estimates: list[Estimate]) -> Estimate:
    """Weighed by rows: sum m mean / sum m, and of the biased v, sum m v / sum (m - 1)."""
    rows, batches = sum(e.rows for e in estimates), len(estimates)
    mean = sum(e.rows * e.mean for e in estimates) / rows
    var = sum((e.rows - 1) * e.var for e in estimates) / (rows - batches)
    return Estimate(mean, var, rows, batches)


def without_rare_steps(estimates: dict[int, Estimate], min_rows: int) -> dict[int, Estimate]:
    """What `update_bn` keeps: steps of 4 min_rows rows, or of as many as the first step has."""
    first = estimates[0].rows if 0 in estimates else 0
    return {step: e for step, e in estimates.items() if e.rows >= min(4 * min_rows, first)}


def population(
    minibatches: Sequence[list[Statistic]],
    momentum: float | None,
    *,
    shared: bool = False,
    horizon: int | None = None,
) -> dict[int, Estimate]:
    """The estimates of one site after a list of minibatches, by step; uncounted steps are absent.

    A whole sequence is one statistic at step 0. Steps at or beyond the horizon are not kept.
    """
    history: dict[int, list[Estimate]] = {}
    for minibatch in minibatches:
        if not minibatch:
            continue
        for step, new in (over_steps if shared else by_step)(minibatch).items():
            if horizon is None or shared or step < horizon:
                history.setdefault(step, []).append(new)
    return {
        step: cumulative_average(list_) if momentum is None else moving_average(list_, momentum)
        for step, list_ in history.items()
    }
