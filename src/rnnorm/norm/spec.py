"""Specs of which sites of a recurrent layer are normalised, and over what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

Scope = Literal["frame", "sequence"]

SITES = ("input", "recurrent", "joint", "cell", "carry")
# sites of the cell state c: H wide, with a shift of their own
CELL_SITES = ("cell", "carry")


def field_of(site: str) -> str:
    """Return the field of a spec that a site belongs to: ``"input"`` for ``"input_period4"``."""
    return site.partition("_")[0]


class Spec:
    """Base of specs, whose error for an unknown field lists the fields that exist."""

    def __new__(cls, *args: Any, **given: Any) -> Spec:
        """Refuse positional arguments and unknown fields."""
        if args:
            raise TypeError(f"{cls.__name__} takes keyword arguments only, got {args[0]!r}")
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no {name!r}, it has {', '.join(known)}")
        return super().__new__(cls)


def check_number(
    name: str, value: object, least: float = -math.inf, most: float = math.inf
) -> None:
    """Check that a value is a finite number between ``least`` and ``most``.

    Raises:
        TypeError: if ``value`` is not a number.
        ValueError: if ``value`` is not finite or out of range.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value) or not least <= value <= most:
        bounds = [f"at least {least:g}"] * (least > -math.inf) + [f"at most {most:g}"] * (
            most < math.inf
        )
        raise ValueError(f"{name} must be {' and '.join(['finite', *bounds])}, got {value}")


def check_int(name: str, value: object, least: int, optional: bool = False) -> None:
    """Check that a value is an int of at least ``least``, or None if ``optional``.

    Raises:
        TypeError: if ``value`` is not an int.
        ValueError: if ``value`` is less than ``least``.
    """
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int{' or None' * optional}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


class Norm(Spec):
    """Base of :class:`BatchNorm` and :class:`LayerNorm`: which sites are normalised, and how.

    A norm of each row by itself is written in ``normalise_rows``. Batch normalisation alone has
    statistics over rows, which kernels compute.
    """

    gamma: float
    eps: float

    def normalise_rows(
        self, z: Tensor, widths: list[int], gamma: Tensor, shift: Tensor | None
    ) -> Tensor:
        """Normalise each row by itself.

        Args:
            z: ``(n, F)``.
            widths: widths of the blocks that each have their own statistics.
            gamma: ``(F,)``.
            shift: ``(F,)``, or None if nothing is added.

        Raises:
            NotImplementedError: if a subclass does not override this method.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how a row is normalised")


def _check_eps(eps: object) -> None:
    check_number("norm.eps", eps, 0.0)
    # the smallest normal number of float32
    if eps < 2.0**-126:  # type: ignore[operator]
        raise ValueError(
            f"norm.eps must be above 0 in float32, got {eps}: a constant site has no variance"
        )


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Norm):
    """Batch normalisation of the sites of a cell (Cooijmans et al. 2016; Laurent et al. 2015).

    A scope is ``"frame"`` (over the active rows of one time step), ``"sequence"`` (over all
    unpadded frames of the minibatch; the input term alone) or ``None`` (not normalised).

    Args:
        input: scope of ``W_x x_t``.
        recurrent: scope of ``W_h h_{t-1}``.
        joint: scope of ``W_x x_t + W_h h_{t-1}``, in place of the two above (no GRU with
            ``reset_after``; Laurent et al. eq. 17).
        cell: scope of the ``c_t`` that the output reads, ``h_t = o_t tanh(BN(c_t))``
            (Cooijmans et al. eq. 8); a cell without ``c`` ignores it.
        carry: scope of ``c_t`` itself, which the next step then reads normalised (LSTM).
            Known to explode.
        gamma: initial scale of every site.
        eps: added to the variance, above 0.
        momentum: weight of a new minibatch in the population statistics; ``None`` for the
            cumulative average.
        population: ``"per_step"`` keeps statistics of every time step, ``"shared"`` one for all.
        horizon: number of steps with statistics of their own; ``None`` grows to the longest
            sequence seen. ``"shared"`` statistics and sequence scope always have one row.
        min_rows: a step with fewer active rows takes no statistic of its own; where a call has
            fewer at its first step, that number counts instead, but never less than two.

    Raises:
        ValueError: if a value is not one of those named above, ``joint`` is given together with
            ``input`` or ``recurrent``, or a number is not finite or out of range.
        TypeError: if an unknown field is given, or a number is expected and not given.
    """

    input: Scope | None = "frame"
    recurrent: Scope | None = "frame"
    joint: Scope | None = None
    cell: Scope | None = "frame"
    carry: Scope | None = None
    gamma: float = 0.1
    eps: float = 1e-5
    momentum: float | None = 0.1
    population: Literal["per_step", "shared"] = "per_step"
    horizon: int | None = None
    min_rows: int = 8

    def __post_init__(self) -> None:
        if self.input not in ("frame", "sequence", None):
            raise ValueError(f"norm.input must be 'frame', 'sequence' or None, got {self.input!r}")
        for site in SITES[1:]:
            if (scope := getattr(self, site)) not in ("frame", None):
                why = (
                    ": the term at later steps is not known before the recurrence has run"
                    if scope == "sequence"
                    else ""
                )
                raise ValueError(f"norm.{site} must be 'frame' or None, got {scope!r}{why}")
        if self.joint and (self.input or self.recurrent):
            raise ValueError(
                "norm.joint normalises the sum of the input and the recurrent term: it needs "
                f"input=None and recurrent=None, got input={self.input!r} and "
                f"recurrent={self.recurrent!r}"
            )
        check_number("norm.gamma", self.gamma)
        _check_eps(self.eps)
        if self.momentum is not None:
            check_number("norm.momentum", self.momentum, 0.0, 1.0)
        if self.population not in ("per_step", "shared"):
            raise ValueError(
                f"norm.population must be 'per_step' or 'shared', got {self.population!r}"
            )
        check_int("norm.horizon", self.horizon, 1, optional=True)
        check_int("norm.min_rows", self.min_rows, 2)


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Norm):
    """Layer normalisation of the sites of a cell (Ba et al. 2016).

    Each row has one mean and variance over all gates of a term; a GRU's candidate has its own,
    apart from the two gates.

    Args:
        input: whether ``W_x x_t`` is normalised.
        recurrent: whether ``W_h h_{t-1}`` is normalised.
        cell: whether the ``c_t`` that the output reads is normalised; a cell without ``c`` ignores
            this field.
        gamma: initial scale of every site.
        eps: added to the variance.

    Raises:
        ValueError: if a site is not a bool, or a number is not finite or out of range.
        TypeError: if an unknown field is given, or a number is expected and not given.
    """

    input: bool = True
    recurrent: bool = True
    cell: bool = True
    gamma: float = 1.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for site in ("input", "recurrent", "cell"):
            if not isinstance(value := getattr(self, site), bool):
                raise ValueError(f"norm.{site} must be True or False, got {value!r}")
        check_number("norm.gamma", self.gamma)
        _check_eps(self.eps)

    def normalise_rows(
        self, z: Tensor, widths: list[int], gamma: Tensor, shift: Tensor | None
    ) -> Tensor:
        """Normalise by the mean and variance of each row's blocks (Ba et al. 2016, eq. 20–22)."""
        shifts = [None] * len(widths) if shift is None else torch.split(shift, widths)
        blocks = [
            layer_norm(block, block.shape[-1:], scale, offset, self.eps)
            for block, scale, offset in zip(
                torch.split(z, widths, -1), torch.split(gamma, widths), shifts, strict=True
            )
        ]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, -1)


PRESETS: Mapping[str, Norm] = {
    "batch": BatchNorm(),
    "layer": LayerNorm(),
    "cooijmans2016": BatchNorm(),
    "laurent2015-sequence": BatchNorm(input="sequence", recurrent=None, cell=None, gamma=1.0),
    "laurent2015-frame": BatchNorm(recurrent=None, cell=None, gamma=1.0),
    "bn-e*": BatchNorm(input="sequence"),
    "joint": BatchNorm(input=None, recurrent=None, joint="frame", cell=None, gamma=1.0),
    "carry": BatchNorm(input=None, recurrent=None, cell=None, carry="frame", gamma=1.0),
    "ba2016": LayerNorm(),
}


def resolve(norm: str | Norm | None) -> Norm | None:
    """Turn the name of a preset into its spec, and leave a spec or None as it is.

    Raises:
        ValueError: if no preset has that name.
        TypeError: if ``norm`` is neither a name nor a spec nor ``None``.
    """
    if norm is None or isinstance(norm, Norm):
        return norm
    if not isinstance(norm, str):
        raise TypeError(
            "norm must be None, a preset's name, an rnnorm.BatchNorm or an rnnorm.LayerNorm, got "
            f"{type(norm)}"
        )
    if norm not in PRESETS:
        raise ValueError(f"norm must be None or one of {', '.join(PRESETS)}, got {norm!r}")
    return PRESETS[norm]
