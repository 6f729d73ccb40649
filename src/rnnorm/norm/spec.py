"""Specs of which sites of a recurrent layer are normalised, and over what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

Scope = Literal["frame", "sequence"]
#: the columns of a term that share the statistics of a row
Over = Literal["term", "gate"]
Value = TypeVar("Value")

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
        got = f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"{name} must be a number, got {got}")
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


class BySite(Mapping[str, Value]):
    """An unchangeable mapping of sites: hashable, ordered as ``SITES``, printed as a dict."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = {site: values[site] for site in SITES if site in values}

    def __getitem__(self, site: str) -> Value:
        return self._values[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


class Norm(Spec):
    """Base of :class:`BatchNorm`, :class:`LayerNorm` and :class:`RMSNorm`.

    A spec says which sites are normalised, and how. A norm of each row by itself is written in
    ``normalise_rows``. Batch normalisation alone has statistics over rows, which kernels compute.
    """

    gamma: float | Mapping[str, float]
    eps: float
    # values of a site's field: the usual one that normalises the site, and the one that does not
    on: ClassVar[Any] = True
    off: ClassVar[Any] = False

    @property
    def takes_statistics(self) -> bool:
        """Tell whether a site has statistics over rows, which a population keeps."""
        return False

    def of(self, site: str) -> Norm | None:
        """Return the spec that normalises a site of a cell, None if the site is not normalised."""
        # most sites are fields of the norm
        on = getattr(self, site, None) or ("_" in site and getattr(self, field_of(site), None))
        return self if on else None

    def scope(self, site: str) -> Any:
        """Return the value of a site's field in the spec that normalises it, None without one."""
        own = self.of(site)
        return own and getattr(own, field_of(site), None)

    def demanded(self) -> tuple[str, ...]:
        """Return the normalised sites without which a cell is refused; others it may lack."""
        return tuple([site for site in ("joint", "carry") if self.of(site)])

    def initial_gamma(self, site: str) -> float:
        """Return the initial scale of a site."""
        if isinstance(self.gamma, Mapping):
            return float(self.gamma.get(field_of(site), type(self).gamma))  # type: ignore[arg-type]
        return float(self.gamma)

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

    def _check_joint_gamma_eps(self) -> None:
        """Check the joint site, γ and ε; a mapping of γ is kept as one that cannot be changed."""
        given: Any = self
        if given.joint and (given.input or given.recurrent):
            raise ValueError(
                "norm.joint normalises the sum of the input and the recurrent term: it needs "
                f"input={self.off} and recurrent={self.off}, got input={given.input!r} and "
                f"recurrent={given.recurrent!r}"
            )
        if isinstance(self.gamma, Mapping):
            normalised = [site for site in SITES if self.of(site)]
            for site, value in self.gamma.items():
                if site not in normalised:
                    raise ValueError(
                        f"norm.gamma must be a number, or numbers by the sites that are normalised "
                        f"({', '.join(normalised)}), got one for {site!r}"
                    )
                check_number(f"norm.gamma[{site!r}]", value)
            object.__setattr__(self, "gamma", BySite(self.gamma))
        else:
            check_number("norm.gamma", self.gamma)
        check_number("norm.eps", self.eps, 0.0)
        # the smallest normal number of float32
        if self.eps < 2.0**-126:
            raise ValueError(
                f"norm.eps must be above 0 in float32, got {self.eps}: a constant site "
                "would be divided by 0"
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
            ``reset_after=True``; Laurent et al. eq. 17).
        cell: scope of the ``c_t`` that the output reads, ``h_t = o_t tanh(BN(c_t))``
            (Cooijmans et al. eq. 8); a cell without ``c`` ignores it.
        carry: scope of ``c_t`` itself, which the next step then reads normalised (LSTM).
            Known to explode.
        gamma: initial scale of every site, or a mapping of sites to theirs, such as
            ``{"recurrent": 0.3}``; a site that is left out has the default.
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
    gamma: float | Mapping[str, float] = 0.1
    eps: float = 1e-5
    momentum: float | None = 0.1
    population: Literal["per_step", "shared"] = "per_step"
    horizon: int | None = None
    min_rows: int = 8
    on = "frame"
    off = None

    @property
    def takes_statistics(self) -> bool:
        """Tell that sites have statistics over rows."""
        return True

    def __post_init__(self) -> None:
        if self.input not in ("frame", "sequence", None):
            raise ValueError(f"norm.input must be 'frame', 'sequence' or None, got {self.input!r}")
        for site in SITES[1:]:
            if (scope := getattr(self, site)) not in ("frame", None):
                why = ": the term at later steps is not known before the recurrence has run"
                why = why if scope == "sequence" else ""
                raise ValueError(f"norm.{site} must be 'frame' or None, got {scope!r}{why}")
        self._check_joint_gamma_eps()
        if self.momentum is not None:
            check_number("norm.momentum", self.momentum, 0.0, 1.0)
        if self.population not in ("per_step", "shared"):
            raise ValueError(
                f"norm.population must be 'per_step' or 'shared', got {self.population!r}"
            )
        check_int("norm.horizon", self.horizon, 1, optional=True)
        check_int("norm.min_rows", self.min_rows, 2)


@dataclass(frozen=True, kw_only=True)
class RowNorm(Norm):
    """Base of :class:`LayerNorm` and :class:`RMSNorm`, which normalise each row by itself."""

    input: bool = True
    recurrent: bool = True
    joint: bool = False
    cell: bool = True
    carry: bool = False
    over: Over | None = None
    gamma: float | Mapping[str, float] = 1.0
    eps: float = 1e-5

    def __post_init__(self) -> None:
        for site in SITES:
            if not isinstance(value := getattr(self, site), bool):
                raise ValueError(f"norm.{site} must be True or False, got {value!r}")
        if self.over not in ("term", "gate", None):
            raise ValueError(f"norm.over must be 'term', 'gate' or None, got {self.over!r}")
        self._check_joint_gamma_eps()

    def normalise_rows(
        self, z: Tensor, widths: list[int], gamma: Tensor, shift: Tensor | None
    ) -> Tensor:
        """Normalise each block of each row by its own statistics."""
        if len(widths) == 1:
            return self.normalise_block(z, gamma, shift)
        shifts = [None] * len(widths) if shift is None else torch.split(shift, widths)
        parts = zip(torch.split(z, widths, -1), torch.split(gamma, widths), shifts, strict=True)
        return torch.cat([self.normalise_block(*part) for part in parts], -1)

    def normalise_block(self, z: Tensor, gamma: Tensor, shift: Tensor | None) -> Tensor:
        """Normalise each row ``z`` ``(n, N)`` by one statistic.

        Raises:
            NotImplementedError: if a subclass does not override this method.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how a row is normalised")


@dataclass(frozen=True, kw_only=True)
class LayerNorm(RowNorm):
    """Layer normalisation of the sites of a cell (Ba et al. 2016).

    Args:
        input: whether ``W_x x_t`` is normalised.
        recurrent: whether ``W_h h_{t-1}`` is normalised.
        joint: whether ``W_x x_t + W_h h_{t-1}`` is, in place of the two above, which then must be
            False (no GRU with ``reset_after=True``).
        cell: whether the ``c_t`` that the output reads is normalised; a cell without ``c`` ignores
            this field.
        carry: whether ``c_t`` itself is, which the next step then reads normalised (LSTM).
        over: which columns of a term share a mean and a variance: ``"term"``, all of them;
            ``"gate"``, those of each gate; None, all of them, but in a GRU those of the two gates,
            and apart from these the candidate's. ``c_t`` always is one gate.
        gamma: initial scale of every site, or a mapping of sites to theirs, such as
            ``{"recurrent": 0.3}``; a site that is left out has the default.
        eps: added to the variance, above 0.

    Raises:
        ValueError: if a site is not a bool, ``joint`` is given together with ``input`` or
            ``recurrent``, ``over`` is not one of those named above, or a number is not finite or
            out of range.
        TypeError: if an unknown field is given, or a number is expected and not given.
    """

    def normalise_block(self, z: Tensor, gamma: Tensor, shift: Tensor | None) -> Tensor:
        """Normalise by each row's mean and variance (Ba et al. 2016, eq. 20–22)."""
        return layer_norm(z, z.shape[-1:], gamma, shift, self.eps)


@dataclass(frozen=True, kw_only=True)
class RMSNorm(RowNorm):
    """Normalisation of the sites of a cell by each row's root mean square.

    As :class:`LayerNorm`, without the mean (Zhang & Sennrich 2019): ``z / √(mean(z²) + eps) · γ``.

    Args:
        input: whether ``W_x x_t`` is normalised.
        recurrent: whether ``W_h h_{t-1}`` is normalised.
        joint: as in :class:`LayerNorm`.
        cell: as in :class:`LayerNorm`.
        carry: as in :class:`LayerNorm`.
        over: which columns of a term share a root mean square, as in :class:`LayerNorm`.
        gamma: initial scale of every site, or a mapping of sites to theirs.
        eps: added to the mean square, above 0.

    Raises:
        ValueError, TypeError: as :class:`LayerNorm`.
    """

    def normalise_block(self, z: Tensor, gamma: Tensor, shift: Tensor | None) -> Tensor:
        """Divide by each row's root mean square (Zhang & Sennrich 2019, eq. 4)."""
        z = rms_norm(z, z.shape[-1:], gamma, self.eps)
        return z if shift is None else z + shift
