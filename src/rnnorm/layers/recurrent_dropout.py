"""Recurrent dropout: three specs, and the masks that they draw."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rnnorm.cells.cell import Cell, State
from rnnorm.kernels.call import Mask
from rnnorm.norm.spec import Spec, check_number


class _Probabilities(Spec):
    """Base of specs: fields are probabilities, and ``places`` says where in a cell each acts."""

    places: ClassVar[dict[str, str]]

    def __post_init__(self) -> None:
        for field in self.places:
            name, value = f"{type(self).__name__}.{field}", getattr(self, field)
            check_number(name, value)
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {value}")

    def rates(self) -> dict[str, float]:
        """Return the probabilities above 0, by place."""
        rates = {place: getattr(self, field) for field, place in self.places.items()}
        return {place: float(p) for place, p in rates.items() if p}


@dataclass(frozen=True, kw_only=True)
class Zoneout(_Probabilities):
    """Zoneout: units keep their value of the step before (Krueger et al. 2016).

    For each unit at each step, ``c_t = d c_{t-1} + (1 - d) (f c_{t-1} + i g)``, where d = 1 with
    the given probability; h is zoned out in the same way, and is computed from the new c before
    zoneout. In evaluation d is the probability.

    Args:
        cell: probability for a unit of c; it must be 0 for a cell without c.
        hidden: probability for a unit of h.

    Raises:
        ValueError: if a probability is not in [0, 1).
        TypeError: if an unknown field is given, or a value is not a number.
    """

    cell: float = 0.5
    hidden: float = 0.05
    places = {"cell": "zoneout_c", "hidden": "zoneout_h"}  # noqa: RUF012


@dataclass(frozen=True, kw_only=True)
class CellDropout(_Probabilities):
    """Dropout of the candidate: ``c_t = f c_{t-1} + i d(g)`` (Semeniuta et al. 2016).

    In a GRU ``h_t = (1 - z) d(n) + z h_{t-1}``. Kept values are divided by ``1 - p``; in
    evaluation nothing is dropped.

    Args:
        p: probability of dropping a unit's candidate.
        sampling: ``"step"`` draws a mask for each step, ``"sequence"`` one for all.

    Raises:
        ValueError: if ``p`` is not in [0, 1), or ``sampling`` is unknown.
        TypeError: if an unknown field is given, or ``p`` is not a number.
    """

    p: float = 0.25
    sampling: Literal["step", "sequence"] = "step"
    places = {"p": "candidate"}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling not in ("step", "sequence"):
            raise ValueError(
                f"CellDropout.sampling must be 'step' or 'sequence', got {self.sampling!r}"
            )


@dataclass(frozen=True, kw_only=True)
class SequenceDropout(_Probabilities):
    """Dropout with one mask for the whole sequence (Gal & Ghahramani 2016).

    Each layer and direction draws its own mask. Kept values are divided by ``1 - p``; in
    evaluation nothing is dropped.

    Args:
        input: probability of dropping a feature of the layer's input, at all steps.
        hidden: probability of dropping a unit of ``h_{t-1}``, at all steps, in the recurrent
            products; the h that a GRU carries to the next step is not dropped.

    Raises:
        ValueError: if a probability is not in [0, 1).
        TypeError: if an unknown field is given, or a value is not a number.
    """

    input: float = 0.0
    hidden: float = 0.0
    places = {"input": "input", "hidden": "hidden"}  # noqa: RUF012


RecurrentDropout = Zoneout | CellDropout | SequenceDropout
_KINDS = (Zoneout, CellDropout, SequenceDropout)


def check_recurrent_dropout(spec: RecurrentDropout | None, cell: Cell) -> None:
    """Check that a spec of recurrent dropout fits a cell.

    Raises:
        TypeError: if ``spec`` is not a spec of recurrent dropout.
        ValueError: if a probability above 0 belongs to a place that the cell does not have.
    """
    if spec is None:
        return
    if not isinstance(spec, _KINDS):
        raise TypeError(
            "recurrent_dropout must be None, a Zoneout, a CellDropout or a SequenceDropout, "
            f"got {spec!r}"
        )
    fitting = ("input", *cell.dropouts)
    for field, place in spec.places.items():
        if place in spec.rates() and place not in fitting:
            takes = [_taken(kind, fitting) for kind in _KINDS]
            raise ValueError(
                f"recurrent_dropout: {type(spec).__name__}.{field} must be 0 for {cell.name}, "
                f"which takes {' and '.join(filter(None, takes))}, got {getattr(spec, field)}"
            )


def _taken(kind: type[RecurrentDropout], fitting: Collection[str]) -> str:
    """Return a call of a kind of recurrent dropout for a cell, empty if it has none of its places.

    Args:
        kind: the kind.
        fitting: places that the cell has.
    """
    if not {*kind.places.values()}.intersection(fitting):
        return ""
    # a default above 0 has to be turned off
    given = [
        f"{field}=…" if place in fitting else f"{field}=0"
        for field, place in kind.places.items()
        if place in fitting or getattr(kind, field) > 0
    ]
    return f"{kind.__name__}({', '.join(given)})"


def masked_places(spec: RecurrentDropout | None, training: bool) -> tuple[str, ...]:
    """Return the places that have a mask in this mode; in evaluation only Zoneout has any."""
    return tuple(spec.rates()) if spec and (training or isinstance(spec, Zoneout)) else ()


def keeps_mask(spec: RecurrentDropout | None) -> bool:
    """Tell whether one mask serves all steps of a sequence."""
    return isinstance(spec, SequenceDropout) or (
        isinstance(spec, CellDropout) and spec.sampling == "sequence"
    )


def draw_masks(
    spec: RecurrentDropout,
    drawn: bool,
    cell: Cell,
    x: Tensor,
    state: State,
    hidden_size: int,
    order: Tensor | None,
) -> dict[str, Mask]:
    """Draw the masks of a layer in one direction, by place.

    A mask is multiplied with; for Zoneout it mixes the old and the new state. Masks are drawn from
    torch's generator for the rows in the user's order: a packed and a padded batch have equal ones.

    Args:
        spec: what is dropped.
        drawn: whether masks are drawn; otherwise they are their expectations.
        cell: names the states.
        x: ``(T, B, I)``.
        state: the states ``(B, ·)``.
        hidden_size: units H.
        order: ``(B,)``, index of each row of ``x`` in the user's order, or None if it is that.

    Returns:
        masks ``(T, B, ·)``, ``(1, B, ·)`` if all steps share one, or ``(1, 1, 1)``.
    """
    T, B, features = x.shape
    widths = {"input": features, "hidden": state[0].size(1), "candidate": hidden_size}
    widths |= {f"zoneout_{name}": s.size(1) for name, s in zip(cell.states, state, strict=True)}
    keeps = isinstance(spec, Zoneout)
    whole = keeps_mask(spec)
    result = {}
    for place, p in spec.rates().items():
        if not drawn:
            if keeps:
                always = torch.ones(1, 1, 1, dtype=torch.bool, device=x.device)
                result[place] = Mask(always, p)
            continue
        mask = _draw_bools(p if keeps else 1 - p, 1 if whole else T, B, widths[place], x.device)
        mask = mask if order is None else mask.index_select(1, order)
        result[place] = Mask(mask, 1.0 if keeps else 1 / (1 - p))
    return result


def _draw_bools(p: float, T: int, B: int, width: int, device: torch.device) -> Tensor:
    """Draw bools that are True with probability p, to 32 bits, faster than ``bernoulli_``."""
    if device.type == "mps":
        # random integers of mps have 32 bits at most
        return torch.rand(T, B, width, device=device) < p
    count = T * B * width
    pairs = torch.randint(-(2**63), 2**63 - 1, ((count + 1) // 2,), device=device)
    bits = pairs.view(torch.int32)[:count].view(T, B, width)
    return bits < max(1, min(round(p * 2**32), 2**32 - 1)) - 2**31
