"""The base of cells: the equations of one time step, with their weights and sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from rnnorm.norm.spec import CELL_SITES, Norm, field_of

State = tuple[Tensor, ...]
Normalise = Callable[[str, Tensor], Tensor]


class Weights(NamedTuple):
    """The weights of one layer in one direction, with the shapes of torch.nn.

    ``own`` holds the weights that a cell declares under other names than torch.nn's.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    weight_hr: Tensor | None = None
    own: Mapping[str, Tensor] = {}


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x W^T + b``, with the product in the dtype of the weight, in the dtype of ``x``."""
    # each call of .to costs time, even where it changes nothing
    if x.dtype is weight.dtype:
        return linear(x, weight, bias)
    narrow = linear(x.to(weight.dtype), weight).to(x.dtype)
    return narrow if bias is None else narrow + bias


def sum_of_terms(
    x_term: Tensor, h: Tensor, weight: Tensor, normalise: Normalise, which: str = ""
) -> Tensor:
    """Return ``x_term + BN(W h)``, or ``BN(x_term + W h) + b`` with a joint site.

    Args:
        x_term: the input term.
        h: the state, or what is multiplied in its place.
        weight: W.
        normalise: as ``Cell.step`` gets it.
        which: end of the names of the recurrent and the joint site, such as ``"_candidate"``.
    """
    site = "recurrent" + which
    if site in getattr(normalise, "unchanged", ()) and h.dtype is weight.dtype:
        # product and sum in one operator, where a kernel says that nothing stands between
        z = torch.addmm(x_term, h, normalise.transposed(weight))  # type: ignore[attr-defined]
    else:
        z = x_term + normalise(site, product(h, weight))
    return normalise("joint" + which, z)


def sum_of_biases(weights: Weights) -> Tensor | None:
    """Return ``b_ih + b_hh``, None without biases."""
    biases = [bias for bias in (weights.bias_ih, weights.bias_hh) if bias is not None]
    return sum(biases[1:], biases[0]) if biases else None


def separate_biases(weights: Weights) -> dict[str, Tensor]:
    """Return each bias by the site of its own term, for a cell that reads the two terms apart."""
    biases = {"input": weights.bias_ih, "recurrent": weights.bias_hh}
    return {site: bias for site, bias in biases.items() if bias is not None}


def product_of_heads(h: Tensor, weight: Tensor, heads: int) -> Tensor:
    """Return the product of each head's units with its rows of a weight ``(gates * H, H / heads)``.

    Computed in the dtype of the weight, in the dtype of ``h``.
    """
    if torch.overrides.has_torch_function((h, weight)):
        # a trace notes the product as a whole
        found: Tensor = torch.overrides.handle_torch_function(
            product_of_heads, (h, weight), h, weight, heads
        )
        return found
    units = weight.size(1)
    seen = h.to(weight.dtype).reshape(-1, heads, units).transpose(0, 1)
    rows = weight.reshape(-1, heads, units, units)
    # (gates, heads, n, H / heads)
    terms = torch.matmul(seen, rows.transpose(-1, -2))
    return terms.permute(2, 0, 1, 3).flatten(1).to(h.dtype)


@dataclass(frozen=True)
class Cell:
    """A recurrent cell: subclass it and write :meth:`step`, for :class:`Recurrent`.

    Options of a cell are the fields of a frozen dataclass, so that two cells with the same
    options are equal.

    Attributes:
        gates: number of gates in each block that layer norm treats as one. A layer of H units
            has ``sum(gates) * H`` rows in ``weight_ih`` and ``weight_hh``.
        sites: what can be normalised. A name is a field of :class:`BatchNorm` or, if a field stands
            for several sites, begins with the field and an underscore.
        dropouts: where recurrent dropout can act: ``"hidden"`` and ``"candidate"``, which ``step``
            passes to ``normalise`` like a site (``preactivation`` does so for ``"hidden"``), and
            ``"zoneout_h"`` and so on for a state, if the output is the first state.
        bounds: lowest and highest value from which weights are drawn at first, uniformly, by name;
            by default those of torch.nn, ``-1/√H`` and ``1/√H``.
        states: names of the states, the output first; ``{name}_0`` is a learned initial state.
        heads: number of heads. A unit reads the h of the units of its head alone, so that
            ``weight_hh`` has ``H / heads`` columns.
        reads_frames: whether ``step`` gets the frame itself instead of the input term. The cell
            then computes the input products, which have no sequence scope.
    """

    gates: ClassVar[tuple[int, ...]] = (1,)
    dropouts: ClassVar[tuple[str, ...]] = ()
    bounds: ClassVar[Mapping[str, tuple[float, float]]] = {}
    states: ClassVar[tuple[str, ...]] = ("h",)
    heads: ClassVar[int] = 1
    reads_frames: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return the name of the cell in messages."""
        return type(self).__name__

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the names of the sites that can be normalised."""
        return ("input", "recurrent", "joint")

    def active_sites(self, norm: Norm | None) -> tuple[str, ...]:
        """Return the sites that ``norm`` normalises.

        Raises:
            ValueError: if ``norm`` asks for a site that the cell does not have, but must have.
        """
        return tuple(self.norms(norm))

    def norms(self, norm: Norm | None) -> dict[str, Norm]:
        """Return the spec of each site that ``norm`` normalises.

        Raises:
            ValueError: if ``norm`` asks for a site that the cell does not have, but must have.
        """
        if norm is None:
            return {}
        available = self.sites
        for site in norm.demanded():
            if site not in map(field_of, available):
                raise ValueError(
                    f"norm.{site} must be {norm.off} for {self.name}, whose sites are "
                    f"{', '.join(available)}, got norm={norm}"
                )
        specs = {site: norm.of(site) for site in available}
        return {site: spec for site, spec in specs.items() if spec is not None}

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """Compute one time step for the n rows that are active.

        Args:
            weights: ``weights.weight_hh`` and so on; weights under other names are in
                ``weights.own["u"]``.
            x_term: the finished input term ``(n, sum(gates) * H)``: normalised, with its bias.
            state: the states ``(n, ·)``.
            normalise: ``normalise(site, z)`` returns the term with the site's shift, normalised if
                the site is. ``normalise("hidden", h)`` returns the h that the recurrent products
                read, and ``normalise("candidate", g)`` the candidate that enters the state, both
                masked by recurrent dropout if there is any.
            t: index of the step in its sequence; for rows of different ages ``(n, 1)`` int64.

        Returns:
            the output ``(n, ·)`` and the next state.

        Raises:
            NotImplementedError: if a subclass does not override this method.
        """
        raise NotImplementedError(f"{self.name} has no step")

    def weights(self, input_size: int, hidden_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the weights of one layer in one direction, as in torch.nn.

        Args:
            input_size: features of a frame.
            hidden_size: units H.
            bias: whether there are biases.

        Raises:
            ValueError: if H is not a multiple of ``heads``.
        """
        if hidden_size % self.heads:
            raise ValueError(
                f"hidden_size must be a multiple of the {self.heads} heads of {self.name}, got "
                f"{hidden_size}"
            )
        rows = sum(self.gates) * hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, input_size),
            "weight_hh": (rows, hidden_size // self.heads),
        }
        return shapes | ({"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {})

    def prepare(self, weights: Weights) -> Weights:
        """Make the weights that ``step`` gets, once for all steps of a call.

        A cell may split a matrix here, for example.

        Args:
            weights: weights of the layer.
        """
        return weights

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Return the bias that is added to each site's term, after its normalisation.

        Args:
            weights: weights of the layer.
            sites: the normalised sites.

        Returns:
            bias by site; by default ``b_ih + b_hh`` at the joint site if that is normalised, else
            at the input site.
        """
        bias = sum_of_biases(weights)
        return {} if bias is None else {"joint" if "joint" in sites else "input": bias}

    def state_sizes(self, hidden_size: int) -> tuple[int, ...]:
        """Return the widths of the states, the output first."""
        return (hidden_size,) * len(self.states)

    def blocks(self, site: str, hidden_size: int) -> list[int]:
        """Return the widths of a site's blocks, each of which layer norm treats as one."""
        gates = (1,) if field_of(site) in CELL_SITES else self.gates
        return [hidden_size * count for count in gates]

    def widths(self, site: str, hidden_size: int, norm: Norm) -> list[int]:
        """Return the widths of the columns of a site that share statistics (``norm.over``).

        Raises:
            ValueError: if each gate is to have its own statistics, and a block is not whole gates.
        """
        blocks, over = self.blocks(site, hidden_size), getattr(norm, "over", None)
        if over == "term":
            return [sum(blocks)]
        if over != "gate":
            return blocks
        widths: list[int] = []
        for block in blocks:
            # a ClockworkRNN's module is narrower than all units
            gate = min(block, hidden_size)
            if block % gate:
                raise ValueError(
                    f"norm.over must be None or 'term' for {self.name}, got 'gate': the site "
                    f"{site!r} has {block} columns, which are not gates of {hidden_size} each"
                )
            widths += [gate] * (block // gate)
        return widths

    def units(self, weights: Weights) -> int:
        """Return the number H of units, read from the shape of the weights."""
        return weights.weight_hh.size(0) // sum(self.gates)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return ``x W^T`` in the weight's dtype; autocast narrows matrices named ``weight…``.

        If the weight has the columns of one of several heads, each head multiplies its own units.
        """
        if self.heads > 1 and weight.size(1) * self.heads == x.size(1):
            return product_of_heads(x, weight, self.heads)
        return product(x, weight)

    def preactivation(
        self, weights: Weights, x_term: Tensor, h: Tensor, normalise: Normalise
    ) -> Tensor:
        """Return ``x_term + BN(W_h h)``, or ``BN(x_term + W_h h) + b`` with a joint site."""
        h = normalise("hidden", h)
        if self.heads > 1:
            term = self.product(h, weights.weight_hh)
            return normalise("joint", x_term + normalise("recurrent", term))
        return sum_of_terms(x_term, h, weights.weight_hh, normalise)
