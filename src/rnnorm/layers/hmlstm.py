"""The public HMLSTM class (hierarchical multiscale LSTM), and the boundaries that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from rnnorm.cells import hmlstm
from rnnorm.cells.cell import Cell
from rnnorm.layers.call import jagged
from rnnorm.layers.recurrent import Recurrent, shapes_of
from rnnorm.layers.recurrent_dropout import RecurrentDropout, SequenceDropout
from rnnorm.norm.presets import NormLike
from rnnorm.norm.spec import check_number
from rnnorm.tracing import values_unknown


class Boundaries(NamedTuple):
    """The boundaries that an :class:`rnnorm.HMLSTM` found, of every layer but the last.

    Args:
        z: ``(T, B, L - 1)`` in the layout of the output: 0 or 1, with ``boundary="soft"`` any
            value between.
        probability: the hard sigmoid that z is made from, with the shape of z.
    """

    z: Any
    probability: Any

    def reinforce(self, cost: Tensor) -> Tensor:
        r"""Return a loss whose gradient is the REINFORCE estimate for sampled boundaries.

        .. math::
            \frac{1}{B} \sum_{t, b} (G_{tb} - \bar{G}_{tb}) \log p(z_{tb}), \qquad
            G_{tb} = \sum_{s \ge t} \mathrm{cost}_{sb}

        (Williams 1992), with the mean over the other rows as the baseline. Add it to the training
        loss, whose gradient does not pass through sampled boundaries.

        Args:
            cost: ``(T, B)``, cost of each step; zero at padding. It gets no gradient.

        Raises:
            RuntimeError: if ``cost`` has another shape, or the boundaries are packed, nested or
                unbatched.
        """
        dense = isinstance(self.z, Tensor) and not self.z.is_nested
        if not dense or self.z.shape[:-1] != cost.shape or cost.dim() != 2:
            shape = tuple(self.z.shape) if isinstance(self.z, Tensor) else type(self.z).__name__
            raise RuntimeError(
                f"cost must be (T, B) for z (T, B, ·), got {tuple(cost.shape)} and {shape}"
            )
        chosen = torch.where(self.z.detach() > 0.5, self.probability, 1 - self.probability)
        future = cost.detach().flip(0).cumsum(0).flip(0)
        rows = cost.size(1)
        others = (future.sum(1, keepdim=True) - future) / max(1, rows - 1)
        return ((future - others) * chosen.log().sum(-1)).sum() / max(1, rows)


class BatchFirstBoundaries(NamedTuple):
    """The boundaries that a layer with ``batch_first`` found in dense input.

    Args:
        z: as in :class:`Boundaries`, but ``(B, T, L - 1)``.
        probability: as in :class:`Boundaries`, but ``(B, T, L - 1)``.
    """

    z: Any
    probability: Any

    def reinforce(self, cost: Tensor) -> Tensor:
        """Return the loss of :meth:`Boundaries.reinforce`.

        Args:
            cost: ``(B, T)``, cost of each step.

        Raises:
            RuntimeError: if ``cost`` has another shape.
        """
        if self.z.shape[:-1] != cost.shape:
            raise RuntimeError(
                f"cost must be (B, T) for z (B, T, ·), got {tuple(cost.shape)} and "
                f"{tuple(self.z.shape)}"
            )
        z, probability = (part.transpose(0, 1) for part in self)
        return Boundaries(z, probability).reinforce(cost.T)


class HMLSTM(Recurrent):
    r"""A (normalised) hierarchical multiscale LSTM (Chung et al. 2016).

    Layer l finds boundaries :math:`z_t^l`. With :math:`z_{t-1}^l = 1` it starts anew (FLUSH), else
    with :math:`z_t^{l-1} = 1` it moves (UPDATE), else it keeps c and h (COPY). The lowest layer
    always has :math:`z_t^0 = 1`, and the last layer finds no boundary:

    .. math::
        (i, f, g, o, \tilde{z})_t^l &= z_t^{l-1} \mathrm{BN}(W^l h_t^{l-1})
            + \mathrm{BN}(U^l h_{t-1}^l) + z_{t-1}^l \mathrm{BN}(V^l h_{t-1}^{l+1}) + b^l \\
        c_t^l &= \sigma(i) \odot \tanh(g) + \sigma(f) \odot c_{t-1}^l \;\text{(UPDATE)}, \quad
            \sigma(i) \odot \tanh(g) \;\text{(FLUSH)}, \quad c_{t-1}^l \;\text{(COPY)} \\
        h_t^l &= \sigma(o) \odot \tanh(\mathrm{BN}(c_t^l)), \quad h_{t-1}^l \;\text{(COPY)} \\
        p_t^l &= \mathrm{clip}((a \tilde{z} + 1) / 2, 0, 1) \\
        \mathrm{output}_t &= \mathrm{ReLU}\Big(\sum_l
            \sigma(w^l [h_t^1; \dots; h_t^L]) W_o^l h_t^l\Big)

    (Chung et al. 2016, eq. 1–12.)

    Args:
        input_size: features I of a frame.
        hidden_size: units H of a layer, and of the output.
        num_layers: layers L.
        bias: whether there are biases.
        batch_first: whether dense input and output are ``(B, T, ·)`` in place of ``(T, B, ·)``;
            states are not affected.
        device: where parameters and statistics live.
        dtype: of the parameters.
        boundary: ``"step"``: z = 1 where p > 1/2, with the straight-through gradient, that of p.
            ``"soft"``: z = p. ``"sample"``: z is drawn with probability p in training, without a
            gradient (use ``boundaries.reinforce``), and is as with ``"step"`` in evaluation.
            ``"given"``: the last ``L - 1`` inputs of a frame are its z, such as 1 at the end of a
            word, and of a sentence; the others are the frame. No ``slope`` is used.
        slope: the a of the hard sigmoid; :class:`rnnorm.lightning.SlopeAnnealing` raises it.
        norm: a :class:`BatchNorm`, :class:`LayerNorm` or :class:`RMSNorm`, the name of a preset, a
            mapping of sites to these, or None.
        learn_initial_state: adds parameters ``h_0``, ``c_0`` ``(1, L * H)`` and ``z_0``
            ``(1, L - 1)``, used where ``hx`` is None.
            ``"from_input"`` adds ``h_0_weight`` ``(1, L * H, I)`` and so on too: a row begins at
            ``h_0 + h_0_weight · mean``, where mean is over its real frames in this call.
        initial_noise: standard deviation of Gaussian noise on h in training, if ``hx`` is
            None. None means 0.1 for batch norm with a recurrent or joint site, else 0.
        recurrent_dropout: a :class:`SequenceDropout`, or None.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with H features; boundaries: as the input, with ``L - 1``
        - h_n, c_n: ``(L, B, H)``; z_n: ``(L - 1, B)``

    Attributes:
        weight_ih_l{k}: from below, ``(4H + 1, I or H)``; ``weight_hh_l{k}``: from the step before;
            ``weight_ah_l{k}``: from above. The last layer has 4H rows, and no layer above it.
        gamma_{site}_l{k}: scale of a layer's site: ``input`` (from below), ``recurrent``,
            ``recurrent_above``, ``joint``, ``(4H + 1,)``, in the last layer ``(4H,)``; ``cell``,
            ``(H,)``, which has a ``beta_cell_l{k}`` too.
        slope: the a of the hard sigmoid; settable, and kept in the ``state_dict``.

    Raises:
        TypeError: as :class:`torch.nn.LSTM`, or if ``slope`` is not a number.
        ValueError: as :class:`torch.nn.LSTM`, or if ``boundary`` is unknown, ``slope`` is negative,
            or ``norm`` does not exist or has the sequence scope or the carry site; with given
            boundaries also if ``input_size`` leaves no input of the frame, or a mask of
            ``recurrent_dropout`` would drop boundaries.

    Example:
        >>> hmlstm = rnnorm.HMLSTM(8, 16, norm="layer")
        >>> output, (h_n, c_n, z_n), boundaries = hmlstm(torch.randn(5, 3, 8))
        >>> output.shape, boundaries.z.shape
        (torch.Size([5, 3, 16]), torch.Size([5, 3, 2]))
    """

    boundary_slope: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 3,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        boundary: Literal["step", "soft", "sample", "given"] = "step",
        slope: float = 1.0,
        norm: NormLike = None,
        learn_initial_state: bool | Literal["from_input"] = False,
        initial_noise: float | None = None,
        recurrent_dropout: RecurrentDropout | None = None,
    ) -> None:
        if boundary not in ("step", "soft", "sample", "given"):
            raise ValueError(
                f"boundary must be 'step', 'soft', 'sample' or 'given', got {boundary!r}"
            )
        check_number("slope", slope, 0.0)
        if boundary == "given":
            if input_size < num_layers:
                raise ValueError(
                    "input_size must be at least num_layers with boundary='given', of which the "
                    f"last num_layers - 1 inputs are boundaries, got {input_size} and {num_layers}"
                )
            if isinstance(recurrent_dropout, SequenceDropout) and recurrent_dropout.input:
                raise ValueError(
                    "recurrent_dropout.input must be 0 with boundary='given': it would drop "
                    f"boundaries, got {recurrent_dropout.input}"
                )
        super().__init__(
            hmlstm.HMLSTM(num_layers, boundary),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            device=device,
            dtype=dtype,
            norm=norm,
            learn_initial_state=learn_initial_state,
            initial_noise=initial_noise,
            recurrent_dropout=recurrent_dropout,
        )
        self._initial_slope = float(slope)
        wide = torch.promote_types(self.weight_ih_l0.dtype, torch.float32)
        self.register_buffer(
            "boundary_slope", torch.tensor(float(slope), device=device, dtype=wide)
        )
        self.own_weights += ("boundary_slope",)

    @property
    def cell(self) -> Cell:
        """Return the equations, which sample boundaries in training only."""
        return self._cell if self.training and self._draws else self._cell_in_evaluation

    @cell.setter
    def cell(self, cell: Cell) -> None:
        assert isinstance(cell, hmlstm.HMLSTM)
        self._cell = cell
        sampled = cell.boundary == "sample"
        self._cell_in_evaluation = replace(cell, boundary="step") if sampled else cell

    @property
    def slope(self) -> float:
        """Return the slope a of the hard sigmoid."""
        return float(self.boundary_slope)

    @slope.setter
    def slope(self, value: float) -> None:
        check_number("slope", value, 0.0)
        self.boundary_slope.fill_(value)

    def reset_parameters(self) -> None:
        """Draw new weights, and reset everything else and the slope to initial values."""
        super().reset_parameters()
        if hasattr(self, "boundary_slope"):
            self.slope = self._initial_slope

    def extra_repr(self) -> str:
        """Return the text of ``Recurrent``, then the slope if it is not 1."""
        differs = not values_unknown(self.boundary_slope) and self.slope != 1
        return super().extra_repr() + (f", slope={self.slope:g}" if differs else "")

    def _suffixes(self) -> list[str]:
        # one call of the cell runs all layers: the names of its weights contain their layer
        return [""]

    def forward(  # type: ignore[override]
        self,
        input: Tensor | PackedSequence,
        hx: tuple[Tensor, Tensor, Tensor] | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        step: int | Tensor | None = None,
        reset: Tensor | PackedSequence | None = None,
    ) -> tuple[Any, tuple[Tensor, Tensor, Tensor], Boundaries | BatchFirstBoundaries]:
        """Run the layers over a batch of sequences.

        Args:
            input: as :meth:`LSTM.forward`.
            hx: h and c ``(L, B, H)`` and z ``(L - 1, B)``, without B for unbatched input.
            lengths: as :meth:`LSTM.forward`.
            step: as :meth:`LSTM.forward`.
            reset: as :meth:`LSTM.forward`.

        Returns:
            the output, the states, and the boundaries, whose type depends on the layout.

        Raises:
            ValueError, RuntimeError, TypeError: as :meth:`LSTM.forward`.
        """
        L, H = self.num_layers, self.hidden_size
        state = None if hx is None else self._joined(hx)
        result, (h, c, z) = super().forward(input, state, lengths=lengths, step=step, reset=reset)
        parts = _split(result, [H, L - 1, L - 1])
        h, c = (s.squeeze(0).unflatten(-1, (L, H)).movedim(-2, 0) for s in (h, c))
        dense = isinstance(parts[0], Tensor) and not parts[0].is_nested
        rows_first = self.batch_first and dense and parts[0].dim() == 3
        found = (BatchFirstBoundaries if rows_first else Boundaries)(*parts[1:])
        return parts[0], (h, c, z.squeeze(0).movedim(-1, 0)), found

    def explained(  # type: ignore[override]
        self, input: Any, *, lengths: Any = None, reset: Any = None
    ) -> tuple[str, dict[str, str]]:
        """Return the kernel of a call, which has no ``return_states``, and why no other runs."""
        return super().explained(input, lengths=lengths, reset=reset)

    def _joined(self, hx: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Join the layers' states side by side, ``(1, B, ·)`` each, as the cell takes them.

        Raises:
            RuntimeError: if ``hx`` is not three tensors, or their sizes do not fit.
        """
        if not isinstance(hx, (tuple, list)) or not all(isinstance(s, Tensor) for s in hx):
            raise RuntimeError(f"hx must be h, c and z, got {shapes_of(hx)}")
        if len(hx) != 3:
            raise RuntimeError(f"hx must be h, c and z, got {len(hx)} tensors")
        L, H = self.num_layers, self.hidden_size
        h, c, z = hx
        rows = h.shape[1:-1]
        if not (h.shape == c.shape == (L, *rows, H) and z.shape == (L - 1, *rows)):
            raise RuntimeError(
                f"hx must be h and c of size ({L}, B, {H}) and z of size ({L - 1}, B), got "
                f"{tuple(h.shape)}, {tuple(c.shape)} and {tuple(z.shape)}"
            )
        h, c = (s.movedim(0, -2).flatten(-2).unsqueeze(0) for s in (h, c))
        return h, c, z.movedim(0, -1).unsqueeze(0)


def _split(result: Any, sizes: list[int]) -> list[Any]:
    """Split the features of an output; parts of a PackedSequence are packed like it."""
    if isinstance(result, PackedSequence):
        # torch.compile does not support _replace
        batch, order, back = result[1:]
        return [
            PackedSequence(part, batch, order, back) for part in torch.split(result.data, sizes, -1)
        ]
    return jagged.split(result, sizes) if result.is_nested else list(torch.split(result, sizes, -1))
