"""One layer in one direction: statistics in, kernel, statistics out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import Cell, State, Weights
from rnnorm.kernels import dispatch
from rnnorm.kernels.mask import Mask
from rnnorm.layers.autocast import autocast_dtype, without_autocast
from rnnorm.norm.merged_moments import ActiveRows
from rnnorm.norm.moments import Moments
from rnnorm.norm.population import Population, update
from rnnorm.norm.spec import CELL_SITES, BatchNorm, Norm, field_of
from rnnorm.tracing import holds, jit_tracing, known, stands_for_several


def checked_step(
    step: int | Tensor, rows: int, training: bool, bidirectional: bool = False
) -> int | Tensor:
    """A ``step`` as an int or a tensor; refuses what is no index of a first frame.

    Args:
        step: as given by the user.
        rows: number of rows, each of which a tensor gives an index.
        training: whether the layer is in training.
        bidirectional: whether a backward direction would have to start in the middle.

    Raises:
        TypeError: ``step`` is neither an int nor an int64 tensor.
        ValueError: it is negative, a tensor in training, or nonzero with ``bidirectional``.
        RuntimeError: a tensor is not ``(rows,)``.
    """
    if isinstance(step, Tensor):
        if step.dtype != torch.int64:
            raise TypeError(f"step must be an int or an int64 tensor, got {step.dtype}")
        if training:
            raise ValueError(
                "step must be an int in training, got a tensor: rows at different ages have no "
                "common statistics"
            )
        if step.shape != (rows,):
            raise RuntimeError(f"step must have shape ({rows},), got {tuple(step.shape)}")
        if stands_for_several(step):
            return step
        lowest, highest = (int(step.min()), int(step.max())) if len(step) else (0, 0)
    elif isinstance(step, (int, Integral)) and not isinstance(step, bool):
        # Integral: of numpy
        lowest = highest = step = step if isinstance(step, int) else int(step)
    else:
        raise TypeError(f"step must be an int or an int64 tensor, got {type(step).__name__}")
    if lowest < 0:
        raise ValueError(f"step must not be negative, got {lowest}")
    if bidirectional and highest > 0:
        raise ValueError(
            f"step must be 0 with bidirectional=True, got {highest}: the backward direction "
            "starts at the last frame"
        )
    return step


def check_tensors(x: Tensor, state: State) -> None:
    """Refuses an input of integers, and states that do not go with it.

    Raises:
        RuntimeError: the input is of integers, a state has another device, or another dtype
            without autocast, or under autocast no floating point or float64 beside another.
    """
    if not x.is_floating_point():
        raise RuntimeError(f"input must have a floating point dtype, got {x.dtype}")
    for s in state:
        _check_device("hidden", s, x)
        if s.dtype == x.dtype:
            continue
        apart = not s.is_floating_point() or torch.float64 in (s.dtype, x.dtype)
        if apart or autocast_dtype(x.device) is None:
            raise RuntimeError(f"hx must have the dtype of the input, {x.dtype}, got {s.dtype}")


def check_traced(training: bool, lengths: object = None) -> None:
    """Refuses what torch.jit.trace would keep as it was in its example.

    Args:
        training: whether what a normalised layer does in training would be kept.
        lengths: as given by the user.

    Raises:
        RuntimeError: there are such, while torch.jit.trace is at work.
    """
    if not jit_tracing():
        return
    if lengths is not None:
        raise RuntimeError("lengths must be None in torch.jit.trace, which keeps their values")
    if training:
        raise RuntimeError("torch.jit.trace takes a normalised layer in evaluation: call eval()")


def _check_device(kind: str, tensor: Tensor, x: Tensor) -> None:
    # a kernel would read the address as one of its own memory
    if tensor.device != x.device:
        raise RuntimeError(
            f"Input and {kind} tensors are not at the same device, found input tensor at "
            f"{x.device} and {kind} tensor at {tensor.device}"
        )


def register_norm(
    module: nn.Module,
    cell: Cell,
    norm: Norm | None,
    hidden_size: int,
    suffix: str = "",
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Adds γ, β and the population of every normalised site to a module.

    Raises:
        ValueError: the cell has no such site, or no such scope.
    """
    if cell.reads_frames and isinstance(norm, BatchNorm) and norm.input == "sequence":
        raise ValueError(
            f"norm.input must be 'frame' or None for {cell.name}, got 'sequence': it reads its "
            "input step by step"
        )
    for site in cell.active_sites(norm):
        assert norm is not None
        features = sum(cell.blocks(site, hidden_size))
        gamma = torch.full((features,), float(norm.gamma), device=device, dtype=dtype)
        module.register_parameter(f"gamma_{site}{suffix}", nn.Parameter(gamma))
        if field_of(site) in CELL_SITES:
            beta = torch.zeros(features, device=device, dtype=dtype)
            module.register_parameter(f"beta_{site}{suffix}", nn.Parameter(beta))
        if isinstance(norm, BatchNorm):
            shared = norm.population == "shared" or getattr(norm, field_of(site)) == "sequence"
            population = Population(features, norm, shared=shared, device=device, dtype=dtype)
            module.add_module(f"population_{site}{suffix}", population)


def populations(module: nn.Module) -> list[Population]:
    """Those of a layer or cell."""
    return [child for child in module._modules.values() if isinstance(child, Population)]


def reset_running_stats(module: nn.Module) -> None:
    """Forgets the population statistics of a layer or cell."""
    for population in populations(module):
        population.reset_running_stats()


def reset_norm(module: nn.Module, norm: Norm | None, states: tuple[str, ...] = ()) -> None:
    """Puts γ back to its initial value, β and learned initial states to 0, forgets statistics.

    Raises:
        RuntimeError: one of them has a parametrization without ``right_inverse``.
    """
    learned = [f"{name}_0{kind}" for name in states for kind in ("", "_weight")]
    for name in (*module._parameters, *getattr(module, "parametrizations", ())):
        if not name.startswith(("gamma_", "beta_")) and name not in learned:
            continue
        value, start = getattr(module, name), 0.0
        if value is None:
            continue
        if name.startswith("gamma_"):
            assert norm is not None
            start = norm.gamma
        with torch.no_grad():
            if name in module._parameters:
                value.fill_(start)
            else:
                # through its parametrization
                setattr(module, name, torch.full_like(value, start))
    reset_running_stats(module)


def parameter(module: nn.Module, name: str) -> Any:
    """What ``getattr(module, name, None)`` is, sooner for a plain parameter."""
    own = module._parameters.get(name)
    # a parametrization or weight_norm keeps it elsewhere
    return getattr(module, name, None) if own is None else own


def run_layer(
    module: nn.Module,
    kernel: dispatch.Kernel,
    cell: Cell,
    norm: Norm | None,
    x: Tensor,
    batch_sizes: Tensor | None,
    state: State,
    suffix: str = "",
    step: int | Tensor = 0,
    masks: Mapping[str, Mask] | None = None,
    rows: ActiveRows | None = None,
    products: torch.dtype | None = None,
) -> tuple[Tensor, State]:
    """Runs a layer whose parameters and populations are attributes of ``module``.

    Args:
        module: holds ``weight_ih{suffix}`` and so on.
        kernel: what runs it.
        cell: the equations.
        norm: what is normalised.
        x: ``(T, B, I)``, the longest row first.
        batch_sizes: ``(T,)`` int64 on the CPU, or None if every row is active at every step.
        state: ``(B, ·)`` each.
        suffix: of the parameters' names.
        step: index of the first frame, in evaluation also ``(B,)``.
        masks: of recurrent dropout.
        rows: those of all ranks, whose statistics are taken; ``batch_sizes`` are then given.
        products: the dtype of matrix products, where autocast chooses it.

    Returns:
        output ``(T, B, H_out)`` and the final state.

    Raises:
        ValueError: in training, too few rows for a statistic.
    """
    T, B, _ = x.shape
    if masks and "input" in masks:
        x = x * masks["input"].numbers(x.dtype)
    active = cell.active_sites(norm)
    populations: dict[str, Population] = {}
    constants: dict[str, Moments] = {}
    min_rows = None
    counts: dict[str, Tensor | int] = {}
    if isinstance(norm, BatchNorm):
        populations = {
            site: module._modules[f"population_{site}{suffix}"]  # type: ignore[misc]
            for site in active
        }
        if module.training:
            # a minibatch that is smaller from the start still trains
            most = B if rows is None else int(rows.each[:, 0].sum())
            min_rows = max(2, min(norm.min_rows, most))
    if rows is not None:
        active_rows: Tensor | None = rows.each.sum(0)
    else:
        active_rows = batch_sizes
    for site, population in populations.items():
        whole = getattr(norm, field_of(site)) == "sequence"
        if min_rows is None:
            constants[site] = population.consecutive(*((0, 1) if whole else (step, T)))
            continue
        assert isinstance(step, int)
        if active_rows is None and min_rows <= B and not torch.compiler.is_compiling():
            counts[site] = T * B if whole else B
            population.grow(step + T)
            continue
        count = torch.full((T,), B, device="cpu") if active_rows is None else active_rows
        count = count.sum(0, keepdim=True) if whole else count
        counts[site] = torch.where(count >= min_rows, count, 0).to(x.device)
        first = known(count[0])
        if first is None or first < min_rows:
            expected = f"norm.{site}: expected at least 2 active {'frames' if whole else 'rows'}"
            served = (count[0] >= 2) | population.counted_before(step)
            if not holds(served, expected):
                before = ", and no earlier step has a statistic" if step else ""
                raise ValueError(
                    f"{expected} at step {step} in training, got {int(count[0])}{before}: leave "
                    "out a last minibatch that is too small (DataLoader's drop_last)"
                )
            constants[site] = population.consecutive(step - 1, len(count))
        elif cell.reads_frames and known(population.counted_before(step)) != 0:
            # which may ask for a site first where fewer rows are left
            constants[site] = population.consecutive(step, len(count))
        population.grow(step + T, agreed=rows is not None)

    own = {name: parameter(module, name + suffix) for name in module.own_weights}  # type: ignore[union-attr]
    # those of torch.nn, then the cell's own
    weights = Weights._make([*[parameter(module, n + suffix) for n in Weights._fields[:-1]], own])
    gamma = {site: parameter(module, f"gamma_{site}{suffix}") for site in active}
    shifted = [site for site in active if field_of(site) in CELL_SITES]
    beta = {site: parameter(module, f"beta_{site}{suffix}") for site in shifted}
    moments = [m for pair in constants.values() for m in pair]
    for tensor in (*weights[:-1], *own.values(), *gamma.values(), *beta.values(), *moments):
        if tensor is not None:
            _check_device("parameter", tensor, x)
    layer = kernel.layer if rows is None else kernel.synchronized
    assert layer is not None
    if rows is not None:
        layer = partial(layer, rows=rows)
    if products is not None:

        def cast(tensor: Tensor) -> Tensor:
            return tensor if tensor.dtype == torch.float64 else tensor.to(products)

        x = cast(x)
        matrices = {
            name: cast(weight)
            for name, weight in {**weights._asdict(), **weights.own}.items()
            if name.startswith("weight") and weight is not None and weight.dim() == 2
        }
        own = {name: matrices.pop(name, weight) for name, weight in weights.own.items()}
        weights = weights._replace(**matrices, own=own)
    with without_autocast(x.device, products):
        output, state, taken = layer(
            cell,
            norm,
            x,
            batch_sizes,
            state,
            weights,
            gamma,
            beta,
            constants,
            min_rows,
            step,
            masks,
        )
    if taken:
        assert isinstance(step, int)
        update(populations, taken, counts, step)
    return output, state
