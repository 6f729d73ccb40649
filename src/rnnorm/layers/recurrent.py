"""The public Recurrent class: layers of any cell."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from rnnorm.cells.cell import Cell
from rnnorm.layers.recurrent_dropout import RecurrentDropout
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.norm.presets import NormLike
from rnnorm.norm.spec import SITES, check_int, field_of


class Recurrent(SequenceLayer):
    """Layers of a cell that you write.

    Write the equations of a step (:class:`Cell`), and get what :class:`LSTM` has: layers,
    directions, packing, ``lengths``, every norm and scope, statistics per step, streams,
    :func:`update_bn`, double backward and ``torch.export``. On a CPU the cell is compiled at its
    first call where it can be (:func:`explain` says why not); elsewhere it runs in plain PyTorch.

    Args:
        cell: the equations, their sites and weights.
        input_size: features I of a frame.
        hidden_size: units H.
        num_layers: layers, each of which reads the outputs of the one before it.
        bias: whether there are biases.
        batch_first: whether dense input and output are ``(B, T, ·)`` in place of ``(T, B, ·)``;
            states are not affected.
        dropout: probability of dropping an output of every layer but the last, in training.
        bidirectional: whether each layer also reads backwards: D is then 2, else 1.
        device: where parameters and statistics live.
        dtype: of the parameters.
        norm: a :class:`BatchNorm`, :class:`LayerNorm` or :class:`RMSNorm`, the name of a preset, a
            mapping of sites to these, or None.
        learn_initial_state: adds a parameter ``{state}_0`` ``(D * num_layers, ·)`` for each state
            of the cell.
            ``"from_input"`` adds ``{state}_0_weight`` ``(D * num_layers, ·, I)`` too: a row begins
            at ``{state}_0 + {state}_0_weight · mean``, where mean is over its real frames in this
            call.
        initial_noise: standard deviation of Gaussian noise on the first state in training, if
            ``hx`` is None. None means 0.1 for batch norm with a recurrent or joint site, else 0.
        recurrent_dropout: a :class:`Zoneout`, :class:`CellDropout` or :class:`SequenceDropout` at
            places in the cell's ``dropouts``, or None.

    Shape:
        - input: ``(T, I)``, ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, or a
          ``PackedSequence``
        - output: as the input, with D times the features of the cell's output
        - states: ``(D * num_layers, B, ·)`` each; one tensor where the cell has one state, else a
          tuple

    Attributes:
        weight_ih_l{k}{_reverse}: and all other weights of :meth:`Cell.weights`, drawn from
            U(-1/√H, 1/√H), or between the ``bounds`` of the cell.
        gamma_{site}_l{k}{_reverse}: scale of a normalised site.
        population_{site}_l{k}{_reverse}: its population statistics (batch norm).

    Raises:
        TypeError: as :class:`torch.nn.RNN`, or if ``cell`` is not a :class:`Cell`, or its gates or
            heads are not whole numbers.
        ValueError: as :class:`torch.nn.RNN`, and for a ``norm`` that does not exist or that asks
            for a site or a scope that the cell does not have, for a cell with a site of another
            name, with bounds of a weight that it lacks, with a weight named as a scale or shift of
            the norm, or without gates, heads, states or ``weight_ih``, for a ``recurrent_dropout``
            at a place that it lacks, and for other arguments as :class:`LSTM`.

    Example:
        >>> class LiGRU(rnnorm.Cell):
        ...     gates = (2,)
        ...
        ...     def step(self, weights, x_term, state, normalise, t):
        ...         (h,) = state
        ...         z, n = self.preactivation(weights, x_term, h, normalise).chunk(2, 1)
        ...         h = torch.lerp(torch.relu(n), h, torch.sigmoid(z))
        ...         return h, (h,)
        >>> ligru = rnnorm.Recurrent(LiGRU(), 8, 16, num_layers=2, norm="laurent2015-frame")
        >>> output, h_n = ligru(torch.randn(5, 3, 8))
        >>> output.shape
        torch.Size([5, 3, 16])
    """

    # under autocast, results have the dtypes of this class
    torch_class = nn.RNN

    def __init__(
        self,
        cell: Cell,
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
    ) -> None:
        _check(cell)
        self.cell = cell
        super().__init__(
            "RNN_TANH",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            norm=norm,
            learn_initial_state=learn_initial_state,
            initial_noise=initial_noise,
            recurrent_dropout=recurrent_dropout,
        )
        self.mode = cell.name
        known = cell.weights(input_size, hidden_size, True)
        if unknown := [name for name in cell.bounds if name not in known]:
            raise ValueError(
                f"cell.bounds must be of the weights {', '.join(known)}, got {unknown[0]!r}"
            )

    def _register_weights(self, **factory_kwargs: Any) -> None:
        cell, H = self.cell, self.hidden_size
        if len(sizes := cell.state_sizes(H)) != len(cell.states):
            raise ValueError(
                f"{cell.name}.state_sizes must return a width for each state of "
                f"{', '.join(cell.states)}, got {sizes}"
            )
        declared = cell.weights(self.input_size, H, self.bias)
        if "weight_ih" not in declared and not cell.reads_frames:
            raise ValueError(
                f"{cell.name}.weights must have 'weight_ih', which makes the input term, unless "
                f"reads_frames is True, got {', '.join(declared)}"
            )
        # torch's constructor has registered the weights of an RNN
        for name in self._flat_weights_names:
            delattr(self, name)
        super()._register_weights(**factory_kwargs)
        names = list(self._parameters)
        self._flat_weights_names = names
        self._all_weights = [[n for n in names if n.endswith(s)] for s in self._suffixes()]

    def flatten_parameters(self) -> None:
        """Do nothing: cuDNN has no such cell."""

    def extra_repr(self) -> str:
        """Return the cell, then torch's text, then the options that are not the defaults."""
        return f"{self.cell}, {super().extra_repr()}"

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Any) -> None:
        """Check the sizes of input and states.

        Raises:
            RuntimeError: if they do not fit, as :class:`torch.nn.RNN`.
        """
        self.check_input(input, batch_sizes)
        rows = batch_sizes[0] if batch_sizes else input.size(0 if self.batch_first else 1)
        layers = len(self._suffixes())
        state = hidden if isinstance(hidden, tuple) else (hidden,)
        for s, (name, size) in zip(state, self._state_sizes().items(), strict=True):
            expected = (layers, rows, size)
            self.check_hidden_size(s, expected, f"Expected hx ({name}) of size {{}}, got {{}}")

    def _refuse(self, input: Any, hx: Any) -> NoReturn:
        states = " and ".join(self.cell.states)
        raise RuntimeError(
            f"{self.mode}: input must be 2-D or 3-D or a PackedSequence, and hx the states "
            f"{states}, with a dimension of layers more than a frame; got input of type "
            f"{type(input).__name__} and hx {shapes_of(hx)}"
        )


def _check(cell: Cell) -> None:
    """Check the attributes of a cell.

    Raises:
        TypeError: if it is not a cell, or its gates or heads are not whole numbers.
        ValueError: if it has no gates, heads or states, or a site that no norm has.
    """
    if not isinstance(cell, Cell):
        raise TypeError(f"cell must be an instance of a subclass of rnnorm.Cell, got {cell!r}")
    if not isinstance(cell.gates, tuple):
        raise TypeError(
            f"cell.gates must be a tuple of whole numbers, such as (4,), got {cell.gates!r}"
        )
    if not cell.gates:
        raise ValueError("cell.gates must have at least one number, such as (1,), got ()")
    for count in cell.gates:
        check_int("each of cell.gates", count, 1)
    check_int("cell.heads", cell.heads, 1)
    if not cell.states or len({*cell.states}) < len(cell.states):
        raise ValueError(f"cell.states must be different names, at least one, got {cell.states!r}")
    if unknown := [site for site in cell.sites if field_of(site) not in SITES]:
        raise ValueError(
            f"cell.sites must be of {', '.join(SITES)}, or begin with one and an underscore, "
            f"got {unknown[0]!r}"
        )


def shapes_of(hx: Any) -> str:
    """Return the shapes of states as text for an error message."""
    if isinstance(hx, (tuple, list)):
        return f"({', '.join(map(shapes_of, hx))})"
    return str(tuple(hx.shape)) if isinstance(hx, Tensor) else repr(hx)
