"""The public Elman network classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from rnnorm.cells import rnn
from rnnorm.cells.cell import Cell
from rnnorm.layers.one_step import OneStep
from rnnorm.layers.recurrent_dropout import RecurrentDropout
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.norm.presets import NormLike

_CELLS = {kind: rnn.RNN(kind) for kind in ("tanh", "relu")}


class RNN(SequenceLayer):
    r"""A (normalised) Elman network, a replacement for :class:`torch.nn.RNN`.

    .. math::
        h_t = \phi(\mathrm{BN}(W_x x_t) + \mathrm{BN}(W_h h_{t-1}) + b)

    (Laurent et al. 2015, eq. 17 and 18.) With ``norm=None`` it is :class:`torch.nn.RNN` in
    everything but ``isinstance``.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        num_layers: layers, each of which reads the outputs of the one before it.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        bias: whether there are ``b_ih`` and ``b_hh``.
        batch_first: whether dense input and output are ``(B, T, ·)`` in place of ``(T, B, ·)``;
            states are not affected.
        dropout: probability of dropping an output of every layer but the last, in training.
        bidirectional: whether each layer also reads backwards: D is then 2, else 1.
        device: where parameters and statistics live.
        dtype: of the parameters.
        norm: a :class:`BatchNorm` (its input and recurrent, or its joint site),
            :class:`LayerNorm` or :class:`RMSNorm`, the name of a preset, a mapping of sites to
            these, or None.
        learn_initial_state: adds the parameter ``h_0`` ``(D * num_layers, H)``.
            ``"from_input"`` adds ``h_0_weight`` ``(D * num_layers, H, I)`` too: a row begins
            at ``h_0 + h_0_weight · mean``, where mean is over its real frames in this call.
        initial_noise: standard deviation of Gaussian noise on ``h_0`` in training, if ``hx`` is
            None. None means 0.1 for batch norm with a recurrent or joint site, else 0: without
            noise, equal initial states have no variance.
        recurrent_dropout: a :class:`Zoneout` of h, a :class:`SequenceDropout`, or None.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with ``D * H`` features; h_n: ``(D * num_layers, B, H)``

    Attributes:
        gamma_{site}_l{k}{_reverse}: scale of a normalised site, ``(H,)``.
        population_{site}_l{k}{_reverse}: its population statistics (batch norm).

    Raises:
        ValueError, TypeError: as :class:`torch.nn.RNN`, and for a ``norm`` that does not exist or
            that asks for the carry site, for a ``recurrent_dropout`` of c or of the candidate, and
            for other arguments as :class:`LSTM`.

    Example:
        >>> rnn = rnnorm.RNN(8, 16, norm="batch")
        >>> output, h_n = rnn(torch.randn(5, 3, 8))
    """

    nonlinearity: str
    torch_class = nn.RNN

    if TYPE_CHECKING:
        # for editors and type checkers: at run time the messages of a wrong call are torch's
        def __init__(
            self,
            input_size: int,
            hidden_size: int,
            num_layers: int = 1,
            nonlinearity: str = "tanh",
            bias: bool = True,
            batch_first: bool = False,
            dropout: float = 0.0,
            bidirectional: bool = False,
            device: torch.device | str | None = None,
            dtype: torch.dtype | None = None,
            *,
            norm: NormLike = None,
            learn_initial_state: bool | Literal["from_input"] = False,
            initial_noise: float | None = None,
            recurrent_dropout: RecurrentDropout | None = None,
        ) -> None: ...

    else:

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if "proj_size" in kwargs:
                raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
            if len(args) > 3:
                self.nonlinearity = args[3]
                args = args[:3] + args[4:]
            else:
                self.nonlinearity = kwargs.pop("nonlinearity", "tanh")
            if self.nonlinearity not in tuple(_CELLS):
                raise ValueError(
                    f"Unknown nonlinearity '{self.nonlinearity}'. Select from 'tanh' or 'relu'."
                )
            super().__init__(f"RNN_{self.nonlinearity.upper()}", *args, **kwargs)

    @property
    def cell(self) -> Cell:  # type: ignore[override]
        """Return the equations for the nonlinearity."""
        return _CELLS[self.nonlinearity]


class RNNCell(OneStep):
    r"""One step of :class:`RNN`, a replacement for :class:`torch.nn.RNNCell`.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        bias: whether there are ``b_ih`` and ``b_hh``.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        device: where parameters and statistics live.
        dtype: of the parameters.
        norm: a :class:`BatchNorm` of frame scope, a :class:`LayerNorm` or :class:`RMSNorm`, the
            name of a preset, a mapping of sites to these, or None.

    Shape:
        - input: ``(I,)`` or ``(B, I)``; h, given and returned: ``(H,)`` or ``(B, H)``

    Attributes:
        gamma_{site}: scale of a normalised site, ``(H,)``.
        population_{site}: its population statistics (batch norm).

    Raises:
        ValueError: if ``norm`` does not exist, has sequence scope or a carry site.
        TypeError: if ``norm`` is neither a name nor a norm.
        RuntimeError: if the nonlinearity is neither ``"tanh"`` nor ``"relu"``, in the call.

    Example:
        >>> cell = rnnorm.RNNCell(8, 16, norm="batch")
        >>> h = cell(torch.randn(3, 8))
    """

    torch_class = nn.RNNCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        norm: NormLike = None,
    ) -> None:
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, device, dtype, norm)

    @property
    def cell(self) -> Cell:  # type: ignore[override]
        """Return the equations for the nonlinearity."""
        return _CELLS.get(self.nonlinearity) or rnn.RNN(self.nonlinearity)
