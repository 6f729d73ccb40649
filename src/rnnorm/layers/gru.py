"""The public GRU classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from rnnorm.cells import gru
from rnnorm.layers.one_step import OneStep
from rnnorm.layers.recurrent_dropout import RecurrentDropout
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.norm.presets import NormLike


class GRU(SequenceLayer):
    r"""A (normalised) gated recurrent unit, a replacement for :class:`torch.nn.GRU`.

    .. math::
        r_t, z_t &= \sigma(\mathrm{BN}(W_i x_t) + b_i + \mathrm{BN}(W_h h_{t-1}) + b_h) \\
        n_t &= \tanh(\mathrm{BN}(W_{in} x_t) + b_{in}
               + r_t \odot (\mathrm{BN}(W_{hn} h_{t-1}) + b_{hn})) \\
        h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}

    With ``reset_after=False`` the reset gate acts before the product, as in Cho et al. 2014:
    :math:`n_t = \tanh(\mathrm{BN}(W_{in} x_t) + \mathrm{BN}(W_{hn} (r_t \odot h_{t-1})) + b)`.
    With ``reset_after="both"`` it acts on the candidate's whole preactivation, as in the GRU of
    Dreamer's ports (NM512/dreamerv3-torch, sheeprl):
    :math:`n_t = \tanh(r_t \odot (\mathrm{BN}(W_{in} x_t) + \mathrm{BN}(W_{hn} h_{t-1}) + b))`.
    Otherwise, with ``norm=None``, it is :class:`torch.nn.GRU` in everything but ``isinstance``.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        num_layers: layers, each of which reads the outputs of the one before it.
        bias: whether there are ``b_ih`` and ``b_hh``.
        batch_first: whether dense input and output are ``(B, T, ·)`` in place of ``(T, B, ·)``;
            states are not affected.
        dropout: probability of dropping an output of every layer but the last, in training.
        bidirectional: whether each layer also reads backwards: D is then 2, else 1.
        device: where parameters and statistics live.
        dtype: of the parameters.
        norm: a :class:`BatchNorm` (its input and recurrent sites), :class:`LayerNorm` or
            :class:`RMSNorm`, the name of a preset, a mapping of sites to these, or None.
        learn_initial_state: adds the parameter ``h_0`` ``(D * num_layers, H)``.
            ``"from_input"`` adds ``h_0_weight`` ``(D * num_layers, H, I)`` too: a row begins
            at ``h_0 + h_0_weight · mean``, where mean is over its real frames in this call.
        initial_noise: standard deviation of Gaussian noise on ``h_0`` in training, if ``hx`` is
            None. None means 0.1 for batch norm with a recurrent or joint site, else 0: without
            noise, equal initial states have no variance.
        recurrent_dropout: a :class:`Zoneout` of h, a :class:`CellDropout`, a
            :class:`SequenceDropout`, or None.
        reset_after: where the reset gate acts: after the recurrent product (``True``, as in
            torch.nn), before it (``False``), or on the candidate's whole preactivation
            (``"both"``). With ``False`` and ``"both"`` there is a joint site, too. A layer with
            ``False`` is compiled on a CPU at its first call, as a cell of the user's own.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with ``D * H`` features; h_n: ``(D * num_layers, B, H)``

    Attributes:
        gamma_{site}_l{k}{_reverse}: scale of a normalised site, ``(3H,)``; with
            ``reset_after=False`` that of ``recurrent`` and ``joint`` is ``(2H,)``, and
            ``gamma_{site}_candidate_l{k}{_reverse}`` ``(H,)``.
        population_{site}_l{k}{_reverse}: its population statistics (batch norm).

    Raises:
        ValueError, TypeError: as :class:`torch.nn.GRU`, and for a ``norm`` that does not exist or
            that asks for the carry site, or for the joint one with ``reset_after=True``, for a
            ``recurrent_dropout`` of c, for an unknown ``reset_after``, and for other arguments as
            :class:`LSTM`.

    Example:
        >>> gru = rnnorm.GRU(8, 16, norm="batch")
        >>> output, h_n = gru(torch.randn(5, 3, 8))
    """

    cell: gru.GRU
    torch_class = nn.GRU

    if TYPE_CHECKING:
        # for editors and type checkers: at run time the messages of a wrong call are torch's
        def __init__(
            self,
            input_size: int,
            hidden_size: int,
            num_layers: int = 1,
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
            reset_after: bool | Literal["both"] = True,
        ) -> None: ...

    else:

        def __init__(
            self, *args: Any, reset_after: bool | Literal["both"] = True, **kwargs: Any
        ) -> None:
            if "proj_size" in kwargs:
                raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
            if isinstance(reset_after, str) and reset_after != "both":
                raise ValueError(f"reset_after must be True, False or 'both', got {reset_after!r}")
            if not isinstance(reset_after, (bool, str)):
                raise TypeError(
                    f"reset_after should be of type bool, got: {type(reset_after).__name__} "
                    "(the one string is 'both')"
                )
            self.cell = gru.GRU(reset_after)
            super().__init__("GRU", *args, **kwargs)

    def extra_repr(self) -> str:
        """Return torch's text, then the options that are not the defaults."""
        reset_after = self.cell.reset_after
        return super().extra_repr() + (
            "" if reset_after is True else f", reset_after={reset_after!r}"
        )


class GRUCell(OneStep):
    r"""One step of :class:`GRU`, a replacement for :class:`torch.nn.GRUCell`.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        bias: whether there are ``b_ih`` and ``b_hh``.
        device: where parameters and statistics live.
        dtype: of the parameters.
        norm: a :class:`BatchNorm` of frame scope, a :class:`LayerNorm` or :class:`RMSNorm`, the
            name of a preset, a mapping of sites to these, or None.

    Shape:
        - input: ``(I,)`` or ``(B, I)``; h, given and returned: ``(H,)`` or ``(B, H)``

    Attributes:
        gamma_{site}: scale of a normalised site, ``(3H,)``.
        population_{site}: its population statistics (batch norm).

    Raises:
        ValueError: if ``norm`` does not exist, has sequence scope or a site that a GRU lacks.
        TypeError: if ``norm`` is neither a name nor a norm.

    Example:
        >>> cell = rnnorm.GRUCell(8, 16, norm="batch")
        >>> h = cell(torch.randn(3, 8))
    """

    cell = gru.GRU()
    torch_class = nn.GRUCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        norm: NormLike = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, norm)
