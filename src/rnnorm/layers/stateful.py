"""The public Stateful class: a layer that keeps its states from call to call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rnnorm.cells.cell import State
from rnnorm.layers.call import jagged
from rnnorm.layers.call.ages import (
    ages_after,
    chosen_rows,
    number_of_rows,
    reset_from_the_first_frame,
)
from rnnorm.layers.call.autocast import autocast_dtype
from rnnorm.layers.call.checks import as_hx
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.tracing import exporting, jit_tracing, transformed


class _Kept(NamedTuple):
    """The states and ages that the next call of a mode continues.

    Args:
        state: the final states as the layer returned them, detached; the rows are dimension 1.
        age: frames that each row has behind it: an int, or ``(B,)`` int64 where they may differ.
        anew: ``(B,)`` bool, the rows that begin anew at the next call; None if none does.
    """

    state: State
    age: int | Tensor
    anew: Tensor | None = None


class Stateful(nn.Module):
    """A layer that keeps its states, and their ages, from call to call.

    A stream, such as the frames of a microphone or the steps of several environments, then needs
    no bookkeeping: a call continues where the one before has stopped, until :meth:`reset`. In
    evaluation the pieces give what one call over the whole would, each row with the statistics of
    its own age; but with ``learn_initial_state="from_input"`` a row begins by the mean of its first
    piece alone. In training the states are detached between calls (truncated backpropagation), and
    batch normalisation counts the steps of each call from 0.

    Training and evaluation keep states of their own, so that a validation amid an epoch disturbs no
    training. The mode is that of ``layer``. States are no part of the ``state_dict``; they are
    copied, pickled and moved with the module. They are forgotten by its own ``to_empty``, and when
    it leaves the meta device; after ``to_empty`` of a larger model call :meth:`reset`.

    Args:
        layer: an :class:`LSTM`, :class:`GRU`, :class:`RNN`, :class:`Recurrent` or a layer made of
            that, not bidirectional.

    Shape:
        - input: as that of ``layer``; unbatched input is one row
        - output: as that of ``layer``; the final states stay within

    Raises:
        TypeError: if ``layer`` is not a sequence layer of rnnorm.
        ValueError: if it is bidirectional.

    Example:
        >>> lstm = rnnorm.Stateful(rnnorm.LSTM(8, 16, norm="layer")).eval()
        >>> x = torch.randn(20, 3, 8)
        >>> pieces = torch.cat([lstm(piece) for piece in x.split(5)])
        >>> torch.testing.assert_close(pieces, lstm.layer(x)[0])
        >>> lstm.reset([1])                         # the second row begins anew
        >>> output = lstm(torch.randn(5, 3, 8))
        >>> lstm.age
        tensor([25,  5, 25])
    """

    # whether another number of rows begins anew; true while update_bn reads a loader
    _other_rows_begin = False

    def __init__(self, layer: SequenceLayer) -> None:
        if not isinstance(layer, SequenceLayer):
            raise TypeError(
                "layer must be an LSTM, GRU, RNN or Recurrent of rnnorm, got "
                f"{type(layer).__name__} of {type(layer).__module__}"
            )
        if layer.bidirectional:
            raise ValueError(
                "layer must not be bidirectional: its backward direction begins at the last frame, "
                "which a stream does not know yet"
            )
        super().__init__()
        self.layer = layer
        # not buffers: those are averaged, and broadcast over processes
        self._kept: dict[bool, _Kept] = {}

    @property
    def state(self) -> Any:
        """Return the states that the next call continues, shaped as a batch's ``hx``, or None.

        Rows that :meth:`reset` lets begin anew still have their old states here.
        """
        kept = self._kept.get(self.layer.training)
        return None if kept is None else as_hx(kept.state)

    @property
    def age(self) -> int | Tensor:
        """Return the number of frames behind each row, an int or ``(B,)`` int64.

        In training with batch normalisation it is 0.
        """
        kept = self._kept.get(self.layer.training)
        if kept is None:
            return 0
        return kept.age if kept.anew is None else torch.where(kept.anew, 0, kept.age)

    def reset(self, rows: Tensor | Sequence[int] | Sequence[bool] | int | None = None) -> None:
        """Let rows begin anew at the next call, as the layer begins a call without ``hx``.

        The states of the other mode (training or evaluation) stay.

        Args:
            rows: indices of rows, or a bool for each row; None for all, after which the number of
                rows may be another. Before the first call there is no state, and ``rows`` is not
                looked at.

        Raises:
            TypeError: if ``rows`` are neither integers nor bools, or uint8, which may be either.
            RuntimeError: if there is not one bool for each row.
            IndexError: if there is no such row.
            ValueError: if a row is named twice, as by 0 and 1 for each row.
        """
        kept = self._kept.get(self.layer.training)
        if rows is not None and kept is not None:
            anew = chosen_rows(rows, kept.state[0])
            anew = anew if kept.anew is None else anew | kept.anew
            if not anew.all():
                some = anew if anew.any() else None
                self._kept[self.layer.training] = kept._replace(anew=some)
                return
        self._kept.pop(self.layer.training, None)

    def forward(
        self,
        input: Tensor | PackedSequence,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | PackedSequence | None = None,
    ) -> Any:
        """Run the layer from where the call before has stopped.

        Args:
            input: as the layer takes it.
            lengths: as the layer takes them: a row continues behind its last frame.
            reset: as the layer takes it: where rows begin anew within this call.

        Returns:
            the output; of an :class:`HMLSTM` the output and its boundaries.

        Raises:
            RuntimeError: if the input has another number of rows than the call before; in
                ``torch.export``, ``torch.jit.trace`` and transforms of ``torch.func`` other than
                derivatives.
            ValueError, TypeError: as the layer's ``forward``.
        """
        if exporting() or jit_tracing():
            raise RuntimeError(
                "Stateful cannot be exported or traced, as programs keep no states: take its layer,"
                " whose states are arguments and results"
            )
        if isinstance(input, Tensor) and input.is_nested:
            packed, reset, back = jagged.pack(input, lengths, reset)
            result = self(packed, reset=reset)
            if isinstance(result, PackedSequence):
                return jagged.unpack(result, back, input)
            output, found = result
            parts = [jagged.unpack(part, back, input) for part in (output, *found)]
            return parts[0], type(found)(*parts[1:])
        layer, kept = self.layer, self._kept.get(self.layer.training)
        batched = isinstance(input, PackedSequence) or input.dim() == 3
        hx: Any = None
        step: int | Tensor = 0
        if kept is not None:
            rows, known = number_of_rows(input, layer.batch_first), kept.state[0].size(1)
            if rows != known:
                if not self._other_rows_begin:
                    raise RuntimeError(
                        f"input must have the {known} rows whose states are kept from the call "
                        f"before, got {rows}: call reset() where other sequences begin"
                    )
                kept = None
        if kept is not None:
            data = input.data if isinstance(input, PackedSequence) else input
            states = tuple(map(_usable, kept.state))
            if not autocast_dtype(data.device):
                # a call under autocast may have left states of another dtype
                states = tuple([s.to(data.dtype) for s in states])
            hx = tuple([s if batched else s.squeeze(1) for s in states])
            hx, step = as_hx(hx), kept.age
            if kept.anew is not None:
                reset = reset_from_the_first_frame(kept.anew, input, reset, layer.batch_first)
        output, final, *rest = layer(input, hx, lengths=lengths, step=step, reset=reset)
        final = final if isinstance(final, tuple) else (final,)
        state = tuple([_keepable(s if batched else s.unsqueeze(1)) for s in final])
        statistics = layer.training and layer._has_statistics()
        age = 0 if statistics else ages_after(step, input, lengths, reset, layer.batch_first)
        age = _keepable(age) if isinstance(age, Tensor) else age
        self._kept[layer.training] = _Kept(state, age)
        return (output, *rest) if rest else output

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Stateful:
        """Move the states with the parameters; those without values are forgotten."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved = {}
        for mode, (before, age, anew) in self._kept.items():
            state = tuple(map(fn, before))
            if before[0].is_meta and not state[0].is_meta:
                continue
            # fn may convert integers and bools to another dtype
            device = state[0].device
            age = age.to(device) if isinstance(age, Tensor) else age
            moved[mode] = _Kept(state, age, None if anew is None else anew.to(device))
        self._kept = moved
        return self

    def to_empty(
        self, *, device: torch.device | str | int | None, recurse: bool = True
    ) -> Stateful:
        """Move the parameters without their values, and forget the states."""
        self._kept = {}
        return super().to_empty(device=device, recurse=recurse)


@contextmanager
def states_apart(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let every :class:`Stateful` begin anew within the context, and go on afterwards as before."""
    before = [(module, module._kept) for module in modules if isinstance(module, Stateful)]
    try:
        for module, _ in before:
            module._kept = {}
        yield
    finally:
        for module, kept in before:
            module._kept = kept


def _usable(state: Tensor) -> Tensor:
    """Return a state that autograd takes, also after a call in inference mode."""
    return (
        state.clone() if state.is_inference() and not torch.is_inference_mode_enabled() else state
    )


def _keepable(state: Tensor) -> Tensor:
    """Return a state that later calls may read, without the call's derivatives.

    Raises:
        RuntimeError: under ``torch.func.vmap``, and other transforms that are no derivatives.
    """
    state, functorch = state.detach(), torch._C._functorch
    while transformed() and functorch.is_functorch_wrapped_tensor(state):
        if not functorch.is_gradtrackingtensor(state):
            raise RuntimeError(
                "Stateful keeps no states under torch.func.vmap: take its layer, whose states are "
                "arguments and results"
            )
        state = functorch.get_unwrapped(state)
    return state
