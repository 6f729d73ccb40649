"""The public classes of cells that torch.nn does not have, but for HMLSTM."""

from __future__ import annotations

from typing import Any

from rnnorm.cells import clockwork, indrnn, ligru, mirnn
from rnnorm.layers.recurrent import Recurrent


class LiGRU(Recurrent):
    r"""A (normalised) light gated recurrent unit (Ravanelli et al. 2018).

    It has no reset gate. φ is the rectifier, or tanh:

    .. math::
        z_t &= \sigma(\mathrm{BN}(W_z x_t) + \mathrm{BN}(U_z h_{t-1}) + b_z) \\
        n_t &= \varphi(\mathrm{BN}(W_n x_t) + \mathrm{BN}(U_n h_{t-1}) + b_n) \\
        h_t &= z_t \odot h_{t-1} + (1 - z_t) \odot n_t

    The paper normalises the input term alone, over all frames of the minibatch: ``norm="ligru"``,
    with speechbrain's momentum. The rows of the weights are those of z, then those of n, which
    speechbrain has first.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        *args: arguments of :class:`Recurrent` from ``num_layers`` on.
        nonlinearity: φ, ``"relu"`` or ``"tanh"``.
        **kwargs: keyword arguments of :class:`Recurrent`.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with ``D * H`` features; h_n: ``(D * num_layers, B, H)``

    Attributes:
        weight_ih_l{k}{_reverse}: ``(2H, ·)``; ``weight_hh`` ``(2H, H)``, ``bias_ih`` and
            ``bias_hh`` ``(2H,)``.
        gamma_{site}_l{k}{_reverse}: scale of a normalised site, ``(2H,)``.
        population_{site}_l{k}{_reverse}: its population statistics (batch norm).

    Raises:
        TypeError: as :class:`Recurrent`.
        ValueError: as :class:`Recurrent`, or if ``nonlinearity`` is neither of the two.

    Example:
        >>> ligru = rnnorm.LiGRU(8, 16, norm="ligru")
        >>> output, h_n = ligru(torch.randn(5, 3, 8))
        >>> output.shape
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *args: Any,
        nonlinearity: str = "relu",
        **kwargs: Any,
    ) -> None:
        super().__init__(ligru.LiGRU(nonlinearity), input_size, hidden_size, *args, **kwargs)


class IndRNN(Recurrent):
    r"""A (normalised) independently recurrent network (Li et al. 2018).

    Each unit sees itself alone, by one weight. φ is the rectifier, or tanh:

    .. math::
        h_t = \varphi(\mathrm{BN}(W x_t) + \mathrm{BN}(u \odot h_{t-1}) + b)

    Units meet between layers, so take two or more. ``LayerNorm(recurrent=False)`` with
    ``nonlinearity="tanh"`` is haste's LayerNormIndRNN, :math:`\tanh(\mathrm{LN}(W x_t) + u \odot
    h_{t-1} + b)`.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        *args: arguments of :class:`Recurrent` from ``num_layers`` on.
        nonlinearity: φ, ``"relu"`` or ``"tanh"``.
        **kwargs: keyword arguments of :class:`Recurrent`.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with ``D * H`` features; h_n: ``(D * num_layers, B, H)``

    Attributes:
        weight_hh_l{k}{_reverse}: u, ``(H,)``, drawn from U(0, 1) as in the authors' code.
        gamma_{site}_l{k}{_reverse}: scale of a normalised site, ``(H,)``.
        population_{site}_l{k}{_reverse}: its population statistics (batch norm).

    Raises:
        TypeError: as :class:`Recurrent`.
        ValueError: as :class:`Recurrent`, or if ``nonlinearity`` is neither of the two.

    Example:
        >>> indrnn = rnnorm.IndRNN(8, 16, num_layers=2, norm="laurent2015-frame")
        >>> output, h_n = indrnn(torch.randn(5, 3, 8))
        >>> indrnn.weight_hh_l1.shape
        torch.Size([16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *args: Any,
        nonlinearity: str = "relu",
        **kwargs: Any,
    ) -> None:
        super().__init__(indrnn.IndRNN(nonlinearity), input_size, hidden_size, *args, **kwargs)


class MIRNN(Recurrent):
    r"""A (normalised) RNN with multiplicative integration (Wu et al. 2016, eq. 4).

    .. math::
        h_t = \tanh(\alpha \odot W x_t \odot U h_{t-1} + \beta_1 \odot U h_{t-1}
              + \beta_2 \odot W x_t + b)

    A normalised :math:`W x_t` or :math:`U h_{t-1}` takes the term's place throughout. The joint
    site is the sum without b; with it the layer runs on the reference kernel.

    Args:
        input_size: features I of a frame.
        hidden_size: units H.
        *args: arguments of :class:`Recurrent` from ``num_layers`` on.
        **kwargs: keyword arguments of :class:`Recurrent`.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with ``D * H`` features; h_n: ``(D * num_layers, B, H)``

    Attributes:
        alpha_l{k}{_reverse}: also ``beta_1`` and ``beta_2``, ``(H,)``, which begin at 1.
        gamma_{site}_l{k}{_reverse}: scale of a normalised site, ``(H,)``.
        population_{site}_l{k}{_reverse}: its population statistics (batch norm).

    Raises:
        TypeError, ValueError: as :class:`Recurrent`.

    Example:
        >>> mirnn = rnnorm.MIRNN(8, 16, norm="batch")
        >>> output, h_n = mirnn(torch.randn(5, 3, 8))
        >>> output.shape
        torch.Size([5, 3, 16])
    """

    def __init__(self, input_size: int, hidden_size: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(mirnn.MIRNN(), input_size, hidden_size, *args, **kwargs)


class ClockworkRNN(Recurrent):
    r"""A (normalised) Clockwork RNN (Koutník et al. 2014).

    The units form g modules of equal size, each with a period :math:`T_i`. At step t, counted
    from 0, the modules with :math:`t \bmod T_i = 0` move and the others keep their values:

    .. math::
        h_t^i = \tanh\Big(\mathrm{BN}(W^i x_t)
                + \mathrm{BN}\Big(\sum_{j \ge i} U^{ij} h_{t-1}^j\Big) + b^i\Big)

    A module reads itself and the slower ones. Modules that do not move are not computed: with
    periods 1, 2, 4, … a step costs about two modules' products.

    Args:
        input_size: features I of a frame.
        hidden_size: units H, a multiple of the number of periods.
        periods: periods of the modules, ascending.
        *args: arguments of :class:`Recurrent` from ``num_layers`` on.
        **kwargs: keyword arguments of :class:`Recurrent`.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with ``D * H`` features; h_n: ``(D * num_layers, B, H)``

    Attributes:
        weight_hh_l{k}{_reverse}: ``(H, H)``. The columns left of a module's own, its weights of
            faster modules, are never read.
        gamma_{site}_period{T}_l{k}{_reverse}: scale of a module's site, ``(H / g,)``. Each module
            has its own statistics, of the steps at which it moves.

    Raises:
        TypeError: as :class:`Recurrent`, or if a period is not an int.
        ValueError: as :class:`Recurrent`, or if the periods do not ascend from at least 1 or do not
            divide the units into modules of equal size, or for ``norm.input="sequence"``.

    Example:
        >>> clockwork = rnnorm.ClockworkRNN(8, 16, periods=(1, 2, 4, 8), norm="batch")
        >>> output, h_n = clockwork(torch.randn(5, 3, 8))
        >>> output.shape
        torch.Size([5, 3, 16])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        periods: tuple[int, ...] = (1, 2, 4, 8),
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if isinstance(periods, int):
            raise TypeError(f"periods must be several ints, got {periods}")
        periods = tuple(periods)
        for period in periods:
            if not isinstance(period, int) or isinstance(period, bool):
                raise TypeError(f"periods must be ints, got {period!r}")
        if not periods or periods[0] < 1 or sorted(set(periods)) != list(periods):
            raise ValueError(f"periods must ascend from at least 1, got {periods}")
        if isinstance(hidden_size, int) and hidden_size % len(periods):
            raise ValueError(
                f"hidden_size must be a multiple of the {len(periods)} periods, got {hidden_size}"
            )
        super().__init__(clockwork.ClockworkRNN(periods), input_size, hidden_size, *args, **kwargs)
