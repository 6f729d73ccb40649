"""The base of the sequence classes: their parameters, and which path a call takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rnnorm.cells.cell import Weights
from rnnorm.kernels import dispatch
from rnnorm.layers.call import jagged, short_sequence, usual_call
from rnnorm.layers.call.one_layer import parameter
from rnnorm.layers.call.pieces import must_cut
from rnnorm.layers.call.sorted_batch import even
from rnnorm.layers.initial_state import check_learned, default_noise, register_initial_state
from rnnorm.layers.norm_parameters import register_norm, reset_norm
from rnnorm.layers.normalised_module import NormalisedModule
from rnnorm.layers.recurrent_dropout import (
    RecurrentDropout,
    check_recurrent_dropout,
    masked_places,
)
from rnnorm.norm.presets import NormLike, resolve
from rnnorm.norm.spec import check_number
from rnnorm.tracing import compiled_by_new_torch, jit_tracing, uncompiled


class SequenceLayer(NormalisedModule, nn.RNNBase):
    """Base of RNN, LSTM, GRU and Recurrent.

    Constructor, checks, parameters and repr are those of ``torch.nn.RNNBase``. A subclass names
    its cell and the class of torch.nn whose forward runs if nothing is normalised.
    """

    weight_ih_l0: Tensor
    torch_class: ClassVar[type[nn.RNNBase]]
    # whether training draws masks and boundaries; False while update_bn takes statistics
    _draws = True

    def __init__(
        self,
        # not in *args: jsonargparse has to see which argument a subclass fills
        mode: str,
        *args: Any,
        norm: NormLike = None,
        learn_initial_state: bool | Literal["from_input"] = False,
        initial_noise: float | None = None,
        recurrent_dropout: RecurrentDropout | None = None,
        **kwargs: Any,
    ) -> None:
        spec = resolve(norm)
        check_learned(learn_initial_state)
        if initial_noise is None:
            initial_noise = default_noise(spec)
        check_number("initial_noise", initial_noise, 0.0)
        super().__init__(mode, *args, **kwargs)
        check_recurrent_dropout(recurrent_dropout, self.cell)
        like = self.weight_ih_l0
        self.norm = spec
        self.learn_initial_state = learn_initial_state
        self.initial_noise = float(initial_noise)
        self.recurrent_dropout = recurrent_dropout
        factory_kwargs: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self._register_weights(**factory_kwargs)
        for suffix in self._suffixes():
            register_norm(self, self.cell, spec, self.hidden_size, suffix, **factory_kwargs)
        if learn_initial_state:
            frame = self.input_size if learn_initial_state == "from_input" else None
            count = len(self._suffixes())
            register_initial_state(self, self._state_sizes(), count, frame, **factory_kwargs)

    @property
    def _flat_weights(self) -> list[Any | None]:
        # read by name at each call, so that parametrizations and functional_call are seen
        return [parameter(self, name) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, value: list[Any | None]) -> None:
        # torch.nn assigns the parameters that already exist
        for name, new in zip(self._flat_weights_names, value, strict=False):
            own = self._parameters.get(name)
            if own is not None and new is not own:
                raise RuntimeError(
                    f"_flat_weights is no place to put other weights: set {name}, or take "
                    "torch.nn.utils.parametrize or recurrent_dropout="
                )

    def _update_flat_weights(self) -> None:
        # a parametrized weight is another tensor at each reading, which torch takes for a change
        if "parametrizations" not in self._modules:
            super()._update_flat_weights()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy gets: not what ``compile`` has made, which would run this layer."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        state.pop("_compiled_call_impl", None)
        return state

    def _suffixes(self) -> list[str]:
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{k}{d}" for k in range(self.num_layers) for d in directions]

    def _state_sizes(self) -> dict[str, int]:
        """Return the widths of the states by name, the output first."""
        first, *rest = self.cell.state_sizes(self.hidden_size)
        return dict(zip(self.cell.states, (self.proj_size or first, *rest), strict=True))

    def _register_weights(self, **factory_kwargs: Any) -> None:
        """Register the weights that the cell declares and torch's constructor has not made."""
        own: dict[str, None] = {}
        directions = 2 if self.bidirectional else 1
        above = directions * self._state_sizes()[self.cell.states[0]]
        for i, suffix in enumerate(self._suffixes()):
            below = self.input_size if i < directions else above
            for name, shape in self.cell.weights(below, self.hidden_size, self.bias).items():
                if not hasattr(self, name + suffix):
                    weight = torch.empty(shape, **factory_kwargs)
                    self.register_parameter(name + suffix, nn.Parameter(weight))
                    nn.init.uniform_(weight, -(self.hidden_size**-0.5), self.hidden_size**-0.5)
                if name not in Weights._fields:
                    own[name] = None
        self.own_weights = tuple(own)
        self._draw_bounded()

    @torch.no_grad()
    def _draw_bounded(self) -> None:
        """Draw the weights for which the cell has bounds of its own."""
        for name, bounds in self.cell.bounds.items():
            for suffix in self._suffixes():
                if (weight := self._parameters.get(name + suffix)) is not None:
                    weight.uniform_(*bounds)

    def flatten_parameters(self) -> None:
        """Call torch's method, for cuDNN, if nothing is normalised; otherwise do nothing."""
        if getattr(self, "norm", None) is None:
            super().flatten_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as torch.nn does, and reset γ, β and learned states."""
        # first, since a frozen layer refuses
        self.reset_running_stats()
        super().reset_parameters()
        self._draw_bounded()
        norm = getattr(self, "norm", None)
        reset_norm(self, self.cell, norm, self._suffixes(), self.cell.states)

    def extra_repr(self) -> str:
        """Return torch's text, then the options that are not the defaults."""
        parts = [super().extra_repr()]
        if self.norm is not None:
            parts.append(f"norm={self.norm}")
        if self.learn_initial_state:
            parts.append(f"learn_initial_state={self.learn_initial_state!r}")
        if self.initial_noise != default_noise(self.norm):
            parts.append(f"initial_noise={self.initial_noise}")
        if self.recurrent_dropout is not None:
            parts.append(f"recurrent_dropout={self.recurrent_dropout}")
        return ", ".join(parts)

    @compiled_by_new_torch
    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        step: int | Tensor | None = None,
        reset: Tensor | PackedSequence | None = None,
        return_states: bool = False,
    ) -> tuple[Any, ...]:
        """Run the layers over a batch of sequences.

        Args:
            input: ``(T, B, I)``, ``(B, T, I)`` with ``batch_first``, ``(T, I)`` unbatched, a
                PackedSequence, or a jagged nested tensor ``(B, j, I)`` (``torch.nested``, with
                ``layout=torch.jagged``), whatever ``batch_first`` says.
            hx: initial states as torch.nn takes them.
            lengths: ``(B,)`` integers from 1 to T, for a right-padded dense batch; padding is
                never read, and the output is zero there.
            step: index of the first frame where a sequence continues from an earlier call; also
                int64 ``(B,)``, for rows at different ages, but not in training with batch
                normalisation. None means 0, and warns once in evaluation with ``hx`` and
                statistics that differ between steps. In training statistics of all steps from 0 on
                are kept, up to ``horizon``.
            reset: bool ``(T, B)``, ``(B, T)`` with ``batch_first``, ``(T,)`` unbatched, a
                PackedSequence packed as the input is, or jagged ``(B, j)`` where the input is
                nested. Where it is True, the row begins a new sequence before that frame, as a call
                without ``hx`` begins it: outputs, gradients and statistics are those of each
                piece run as a sequence of its own. ``hx`` and ``step`` are for each row's first
                piece, unless the row begins with a reset. A backward direction reads each
                piece's reverse. Final states, those of the backward direction too, are the ones
                of each row's last piece.
            return_states: whether the states after each frame are returned too.

        Returns:
            output in the form of the input, with the features of the last layer, and final states
            in the form of torch.nn; for a cell that you write one tensor, or a tuple of its states.
            With ``return_states`` there is a third result: all states of the cell, in the form of
            the output with a dimension ``D * num_layers`` before the features, such as
            ``(T, B, D * num_layers, H)``, in the order of the final states; those of a backward
            direction stand at the frame that was read last. They are differentiable.

        Raises:
            ValueError: if ``lengths`` are given with packed, nested or unbatched input; if
                ``step`` is negative or above 2**62, nonzero with ``bidirectional``, or in training
                with batch normalisation a tensor, or nonzero with ``reset``; if in training with
                gradients there are too few rows for a statistic, and no estimate.
            RuntimeError: if sizes do not fit, as torch.nn, ``lengths`` are out of range, ``reset``
                has another shape, layout or device than the input, or a nested input is not jagged
                and 3-D, has gaps between its rows, or a row without frames.
            TypeError: if ``step`` or ``lengths`` are not integers, or ``reset`` is not bool, or not
                packed or nested as the input is.
        """
        rest = lengths is not None or reset is not None or return_states
        if not (rest or torch.compiler.is_compiling()):
            found = short_sequence.run(self, input, hx, step)
            if found is not None:
                return found  # type: ignore[no-any-return]
        if isinstance(input, Tensor) and input.is_nested:
            # a subclass may return more from its forward
            forward = partial(SequenceLayer.forward, self, hx=hx, step=step)
            return uncompiled(jagged.run)(forward, input, lengths, reset, return_states)
        packed = isinstance(input, PackedSequence)
        data: Tensor = input.data if packed else input  # type: ignore[assignment]
        # an input that is not a tensor fails here as in torch.nn
        data.dim()
        # torch.jit.trace records torch's operator for any lengths
        packed = packed and not jit_tracing()
        kernel, traceable = self._choose(
            data, **self._properties(input if packed else None, lengths, reset, return_states)
        )
        cut = reset is not None and must_cut(self, kernel)
        # cuts depend on values
        run = usual_call.run if traceable and not cut else uncompiled(usual_call.run)
        return run(self, kernel, input, hx, lengths, step, reset, return_states, cut)

    def _properties(
        self, packed: Any, lengths: Any, reset: Any, return_states: bool
    ) -> dict[str, Any]:
        """Return the properties of a call by which its kernel is chosen; ``packed`` may be None."""
        return {
            "projected": self.proj_size > 0,
            "padded": not (packed is None and lengths is None and reset is None),
            "even": packed is not None and reset is None and even(packed),
            "masked": masked_places(self.recurrent_dropout, self.training and self._draws),
            "training": self.training,
            "states": return_states,
        }

    def explained(
        self,
        input: Any,
        *,
        lengths: Any = None,
        reset: Any = None,
        return_states: bool = False,
    ) -> tuple[str, dict[str, str]]:
        """Return the kernel of a call, and why those before it do not run."""
        if isinstance(input, Tensor) and input.is_nested:
            # such a call packs its rows
            input = jagged.pack(input, None, None)[0]
        packed = isinstance(input, PackedSequence)
        data: Any = input.data if packed else input
        properties = self._properties(input if packed else None, lengths, reset, return_states)
        return dispatch.explain(**self._asked(data), **properties)

    def _refuse(self, input: Any, hx: Any) -> NoReturn:
        """Raise torch.nn's error for an input or a state of a wrong form."""
        self.torch_class.forward(self, input, hx)
        raise RuntimeError("torch.nn refuses an input or a state of this form")
