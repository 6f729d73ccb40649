"""The public LSTM classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from rnnorm.cells import lstm
from rnnorm.layers.one_step import OneStep
from rnnorm.layers.recurrent_dropout import RecurrentDropout
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.norm.presets import NormLike


class LSTM(SequenceLayer):
    r"""A (normalised) long short-term memory, a replacement for :class:`torch.nn.LSTM`.

    .. math::
        (i, f, g, o)_t &= \mathrm{BN}(W_x x_t) + \mathrm{BN}(W_h h_{t-1}) + b \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(\mathrm{BN}(c_t))

    (Cooijmans et al. 2016, eq. 6–8.) With ``norm=None`` it is :class:`torch.nn.LSTM` in
    everything but ``isinstance``.

    Peepholes are added after the normalisation. With ``peephole="all"`` they are
    :math:`w_{ci} \odot c_{t-1}` in i, :math:`w_{cf} \odot c_{t-1}` in f and
    :math:`w_{co} \odot c_t` in o (Graves 2013); with ``"output"`` only the last (Laurent et al.
    2015). With ``"full"`` they are the matrix products :math:`W_{ci} c_{t-1}`,
    :math:`W_{cf} c_{t-1}` and :math:`W_{co} c_t`, and the layer runs in plain PyTorch.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        num_layers: layers, each of which reads the outputs of the one before it.
        bias: whether there are ``b_ih`` and ``b_hh``.
        batch_first: whether dense input and output are ``(B, T, ·)`` in place of ``(T, B, ·)``;
            states are not affected.
        dropout: probability of dropping an output of every layer but the last, in training.
        bidirectional: whether each layer also reads backwards: D is then 2, else 1.
        proj_size: width of h after a projection, less than H; 0 for none, so that ``H_out`` is H.
        device: where parameters and statistics live.
        dtype: of the parameters.
        norm: a :class:`BatchNorm`, :class:`LayerNorm` or :class:`RMSNorm`, the name of a preset, a
            mapping of sites to these, or None.
        learn_initial_state: adds parameters ``h_0`` ``(D * num_layers, H_out)`` and ``c_0``
            ``(D * num_layers, H)``, used where ``hx`` is None.
            ``"from_input"`` adds ``h_0_weight`` ``(D * num_layers, H_out, I)`` and ``c_0_weight``
            too: a row begins at ``h_0 + h_0_weight · mean``, and c alike, where mean is over its
            real frames in this call.
        initial_noise: standard deviation of Gaussian noise on ``h_0`` in training, if ``hx`` is
            None. None means 0.1 for batch norm with a recurrent or joint site, else 0: without
            noise, equal initial states have no variance.
        recurrent_dropout: a :class:`Zoneout`, a :class:`CellDropout`, a :class:`SequenceDropout`,
            or None.
        peephole: None, ``"output"``, ``"all"`` or ``"full"``.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with ``D * H_out`` features
        - h_n: ``(D * num_layers, B, H_out)``; c_n: ``(D * num_layers, B, H)``

    Attributes:
        gamma_{site}_l{k}{_reverse}: scale of a normalised site, ``(4H,)``, or ``(H,)`` for the
            cell and carry sites, which have a ``beta_{site}_l{k}{_reverse}`` too.
        weight_ci_l{k}{_reverse}: also ``weight_cf``, ``weight_co``: the peepholes, ``(H,)``, or
            ``(H, H)`` with ``"full"``.
        population_{site}_l{k}{_reverse}: population statistics of a batch-normalised site.

    Raises:
        ValueError, TypeError: as :class:`torch.nn.LSTM`, and for a ``norm``, a ``peephole`` or a
            ``learn_initial_state`` that does not exist, a negative ``initial_noise``, and a
            ``recurrent_dropout`` of another type.

    Example:
        >>> lstm = rnnorm.LSTM(8, 16, norm="batch")
        >>> output, (h_n, c_n) = lstm(torch.randn(5, 3, 8))
        >>> output.shape
        torch.Size([5, 3, 16])
    """

    cell: lstm.LSTM
    torch_class = nn.LSTM

    get_expected_cell_size = nn.LSTM.get_expected_cell_size
    check_forward_args = nn.LSTM.check_forward_args  # type: ignore[assignment]
    permute_hidden = nn.LSTM.permute_hidden  # type: ignore[assignment]

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
            proj_size: int = 0,
            device: torch.device | str | None = None,
            dtype: torch.dtype | None = None,
            *,
            norm: NormLike = None,
            learn_initial_state: bool | Literal["from_input"] = False,
            initial_noise: float | None = None,
            recurrent_dropout: RecurrentDropout | None = None,
            peephole: Literal["output", "all", "full"] | None = None,
        ) -> None: ...

    else:

        def __init__(
            self,
            *args: Any,
            peephole: Literal["output", "all", "full"] | None = None,
            **kwargs: Any,
        ) -> None:
            if peephole not in (None, "output", "all", "full"):
                raise ValueError(
                    f"peephole must be None, 'output', 'all' or 'full', got {peephole!r} "
                    "('full' is 'all' with matrices)"
                )
            self.cell = lstm.LSTM(peephole)
            super().__init__("LSTM", *args, **kwargs)

    def extra_repr(self) -> str:
        """Return torch's text, then the options that are not the defaults."""
        peephole = self.cell.peephole
        return super().extra_repr() + (f", peephole={peephole!r}" if peephole else "")


class LSTMCell(OneStep):
    r"""One step of :class:`LSTM`, a replacement for :class:`torch.nn.LSTMCell`.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        bias: whether there are ``b_ih`` and ``b_hh``.
        device: where parameters and statistics live.
        dtype: of the parameters.
        norm: a :class:`BatchNorm` of frame scope, a :class:`LayerNorm` or :class:`RMSNorm`, the
            name of a preset, a mapping of sites to these, or None.

    Shape:
        - input: ``(I,)`` or ``(B, I)``; h, c, given and returned: ``(H,)`` or ``(B, H)``

    Attributes:
        gamma_{site}: scale of a normalised site, ``(4H,)``, or ``(H,)`` for the cell and carry
            sites, which have a ``beta_{site}`` too.
        population_{site}: its population statistics (batch norm).

    Raises:
        ValueError: if ``norm`` does not exist or has sequence scope.
        TypeError: if ``norm`` is neither a name nor a norm.

    Example:
        >>> cell = rnnorm.LSTMCell(8, 16, norm="batch")
        >>> h, c = cell(torch.randn(3, 8))
        >>> h, c = cell(torch.randn(3, 8), (h, c), step=1)
    """

    cell = lstm.LSTM()
    torch_class = nn.LSTMCell

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
