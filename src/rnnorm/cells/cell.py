"""What a cell is: the equations of one time step, its weights and its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor
from torch.nn.functional import linear

from rnnorm.norm.spec import CELL_SITES, Norm, field_of

State = tuple[Tensor, ...]
Normalise = Callable[[str, Tensor], Tensor]


class Weights(NamedTuple):
    """The weights of one layer in one direction, with the shapes of torch.nn.

    ``own`` holds those that a cell declares under other names.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    weight_hr: Tensor | None = None
    own: Mapping[str, Tensor] = {}


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``x W^T`` computed in the dtype of the weight, returned in that of ``x``."""
    return linear(x.to(weight.dtype), weight).to(x.dtype)


@dataclass(frozen=True)
class Cell:
    """A recurrent cell: subclass it and write :meth:`step`, for :class:`Recurrent`.

    Options of a cell are the fields of a frozen dataclass, so that two cells with the same
    options are equal.

    Attributes:
        gates: number of gates in each block that layer norm treats as one. A layer of H units
            has ``sum(gates) * H`` rows in ``weight_ih`` and ``weight_hh``.
        sites: what can be normalised. A name is a field of :class:`BatchNorm`, or that and more
            after an underscore, where a field stands for several sites.
        dropouts: where recurrent dropout can act: ``"hidden"`` and ``"candidate"``, which ``step``
            then asks for as it does for a site (``preactivation`` asks for the first), and
            ``"zoneout_h"`` and so on for a state, of a cell whose output is its first state.
        states: names of the states, the output first; ``{name}_0`` is a learned initial state.
        reads_frames: whether ``step`` gets the frame itself in the place of the input term.
            Input products are then the cell's own, and have no sequence scope.
    """

    gates: ClassVar[tuple[int, ...]] = (1,)
    dropouts: ClassVar[tuple[str, ...]] = ()
    states: ClassVar[tuple[str, ...]] = ("h",)
    reads_frames: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """How messages call it."""
        return type(self).__name__

    @property
    def sites(self) -> tuple[str, ...]:
        """What can be normalised."""
        return ("input", "recurrent", "joint")

    def active_sites(self, norm: Norm | None) -> tuple[str, ...]:
        """The sites that ``norm`` normalises.

        Raises:
            ValueError: ``norm`` asks for a joint or carry site that the cell does not have.
        """
        if norm is None:
            return ()
        available = self.sites
        for site in ("joint", "carry"):
            if getattr(norm, site, None) and site not in map(field_of, available):
                raise ValueError(
                    f"norm.{site} must be None for {self.name}, whose sites are "
                    f"{', '.join(available)}"
                )
        return tuple(
            [
                site
                for site in available
                # most are fields themselves
                if getattr(norm, site, None)
                or ("_" in site and getattr(norm, field_of(site), None))
            ]
        )

    def step(
        self,
        weights: Weights,
        x_term: Tensor,
        state: State,
        normalise: Normalise,
        t: int | Tensor,
    ) -> tuple[Tensor, State]:
        """One time step, for the n rows that are active.

        Args:
            weights: by name, ``weights.weight_hh``; those of other names ``weights.own["u"]``.
            x_term: the finished input term ``(n, sum(gates) * H)``: normalised, with its bias.
            state: ``(n, ·)`` each.
            normalise: ``normalise(site, z)`` is the normalised term with the site's shift; where
                the site is not normalised, the term with its shift. ``normalise("hidden", h)`` is
                what the recurrent products see of h, and ``normalise("candidate", g)`` what enters
                the state: masked by recurrent dropout if there is any.
            t: index of the step in its sequence; for rows of different ages ``(n, 1)`` int64.

        Returns:
            the output ``(n, ·)`` and the next state.
        """
        raise NotImplementedError(f"{self.name} has no step")

    def weights(self, input_size: int, hidden_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights of one layer in one direction; torch.nn's as they are.

        Args:
            input_size: features of a frame.
            hidden_size: units H.
            bias: whether there are biases.
        """
        rows = sum(self.gates) * hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, input_size),
            "weight_hh": (rows, hidden_size),
        }
        return shapes | ({"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {})

    def prepare(self, weights: Weights) -> Weights:
        """What ``step`` gets, made once for all steps of a call: say, parts of a matrix.

        Args:
            weights: of the layer.
        """
        return weights

    def shifts(self, weights: Weights, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Where the biases enter: after the normalisation of the term that they shift.

        Args:
            weights: of the layer.
            sites: those that are normalised.

        Returns:
            what is added, by site; here ``b_ih + b_hh`` to the input term, or where it is
            normalised to the joint one.
        """
        biases = [bias for bias in (weights.bias_ih, weights.bias_hh) if bias is not None]
        if not biases:
            return {}
        return {"joint" if "joint" in sites else "input": sum(biases[1:], biases[0])}

    def state_sizes(self, hidden_size: int) -> tuple[int, ...]:
        """Widths of the states, the output's first."""
        return (hidden_size,) * len(self.states)

    def blocks(self, site: str, hidden_size: int) -> list[int]:
        """Widths of a site's blocks, each of which layer norm treats as one."""
        gates = (1,) if field_of(site) in CELL_SITES else self.gates
        return [hidden_size * count for count in gates]

    def units(self, weights: Weights) -> int:
        """The number H of units, told from the weights."""
        return weights.weight_hh.size(0) // sum(self.gates)

    @staticmethod
    def product(x: Tensor, weight: Tensor) -> Tensor:
        """``x W^T`` in the weight's dtype, which autocast makes narrow if its name says weight."""
        return product(x, weight)

    @staticmethod
    def preactivation(weights: Weights, x_term: Tensor, h: Tensor, normalise: Normalise) -> Tensor:
        """``x_term + BN(W_h h)``, or ``BN(x_term + W_h h) + b`` where joint."""
        h = normalise("hidden", h)
        return normalise("joint", x_term + normalise("recurrent", product(h, weights.weight_hh)))
