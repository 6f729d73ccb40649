"""The public Clockwork RNN class."""

from __future__ import annotations

from typing import Any

from rnnorm.cells import clockwork
from rnnorm.layers.recurrent import Recurrent


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
