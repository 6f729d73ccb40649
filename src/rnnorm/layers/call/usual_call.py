"""The usual path of a sequence class's call: check, sort by length, run, and restore the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from rnnorm.cells.cell import State
from rnnorm.kernels.dispatch import Kernel
from rnnorm.layers.call import sorted_batch as batches
from rnnorm.layers.call.autocast import autocast_dtype, in_dtypes, result_dtypes
from rnnorm.layers.call.checks import Call, as_hx, check_tensors, checked_call
from rnnorm.layers.call.one_layer import CallSettings, parameter
from rnnorm.layers.call.pieces import run_pieces
from rnnorm.layers.call.stack import run_stack
from rnnorm.layers.initial_state import initial_state

if TYPE_CHECKING:
    from rnnorm.layers.sequence_layer import SequenceLayer


def run(
    module: SequenceLayer,
    kernel: Kernel,
    input: Tensor | PackedSequence,
    hx: Any,
    lengths: Tensor | Sequence[int] | None,
    step: int | Tensor | None,
    reset: Tensor | PackedSequence | None,
    return_states: bool,
    cut: bool,
) -> tuple[Any, ...]:
    """Run a call on a kernel, with a row for each piece between resets if ``cut``.

    All other arguments are those of ``SequenceLayer.forward``, which lists the errors.
    """
    call = checked_call(module, kernel, input, hx, lengths, step, reset)
    cut = cut and call.reset is not None
    if not module.training:
        module._warn(step is None and bool(call.state) and not module.bidirectional)
    if kernel.layer is None and call.reset is None:
        return _run_torch(module, call, input, hx, lengths)
    data, given = call.data, call.state
    if given:
        # torch.nn would read the number of rows from a tensor value
        module.check_forward_args(data, as_hx(given), [call.rows] if call.packed else None)  # type: ignore[arg-type]
    else:
        module.check_input(data, call.sizes)
    check_tensors(data, given)
    batch, state, begins_at, begins = _sort(module, call, input, lengths, drawn=not cut)
    products = autocast_dtype(data.device)
    settings = CallSettings(kernel, begins_at, products, begins, return_states)
    results = (run_pieces if cut else run_stack)(module, settings, batch, state)
    output, hidden, states = _finish(module, call, batch, products, *results)
    return (output, hidden, states) if return_states else (output, hidden)


def _sort(
    module: SequenceLayer,
    call: Call,
    input: Tensor | PackedSequence,
    lengths: Tensor | Sequence[int] | None,
    drawn: bool,
) -> tuple[batches.Batch, State, int | Tensor, Tensor | None]:
    """Return the rows sorted by length, with their states, steps and resets.

    Args:
        module: the layer.
        call: the checked arguments.
        input: as given by the user.
        lengths: as given by the user.
        drawn: whether initial states take the place of states that were not given.
    """
    batch = _batch(module, call, input, lengths)
    state, step, order, reset = call.state, call.step, batch.sorted_indices, call.reset
    if drawn and not state:
        state = initial_state(module, call.rows, call.data, batch)
    if order is not None:
        state = tuple([s.index_select(1, order) for s in state])
        step = step[order] if isinstance(step, Tensor) else step
    reset = None if reset is None else batches.reset_of(batch, reset, module.batch_first)
    return batch, state, step, reset


def _batch(
    module: SequenceLayer,
    call: Call,
    input: Tensor | PackedSequence,
    lengths: Tensor | Sequence[int] | None,
) -> batches.Batch:
    """Return the rows of an input, sorted by length."""
    if isinstance(input, PackedSequence):
        return batches.from_packed(input, call.rows)
    return batches.from_dense(call.data, module.batch_first, lengths)


def _finish(
    module: SequenceLayer,
    call: Call,
    batch: batches.Batch,
    products: torch.dtype | None,
    output: Tensor,
    state: State,
    states: State,
) -> tuple[Any, Any, Any]:
    """Return output and states in the dtypes, the order and the form of torch.nn."""
    if products is not None:
        dtypes = result_dtypes(
            module.torch_class,
            products,
            call.data,
            parameter(module, module._flat_weights_names[0]),
            call.state,
            1 + len(state),
            ragged=batch.ragged,
            projected=module.proj_size > 0,
        )
        output, *final = in_dtypes((output, *state), dtypes)
        state = tuple(final)
        states = in_dtypes(states, dtypes[1:] if dtypes and states else None)
    if batch.unsorted_indices is not None:
        state = tuple([s.index_select(1, batch.unsorted_indices) for s in state])
    hidden = _as_torch(state, call.batched)
    output, *every = [_as_input(module, each, call, batch) for each in (output, *states)]
    return output, hidden, tuple(every) if len(every) > 1 else (every or [None])[0]


def _as_input(module: SequenceLayer, output: Tensor, call: Call, batch: batches.Batch) -> Any:
    """Return ``(T, B, ...)`` in the form, the layout and the order of the input."""
    if call.sizes is not None:
        return batches.to_packed(output, batch, call.sizes)
    output = batches.to_dense(output, batch, module.batch_first, call.data)
    return output if call.batched else output.squeeze(1 - module.batch_first)


def _as_torch(state: State, batched: bool) -> Any:
    """Return states in the form that torch.nn takes and returns."""
    return as_hx(state if batched else tuple(s.squeeze(1) for s in state))


def _run_torch(
    module: SequenceLayer,
    call: Call,
    input: Any,
    hx: Any,
    lengths: Tensor | Sequence[int] | None,
) -> tuple[Any, Any]:
    """Run torch.nn's own forward, which serves if nothing is normalised."""
    drawn = module.learn_initial_state or (module.training and module.initial_noise > 0)
    if hx is None and drawn:
        batch = None
        if module.learn_initial_state == "from_input":
            module.check_input(call.data, call.sizes)
            batch = _batch(module, call, input, lengths)
        first = initial_state(module, call.rows, call.data, batch)
        # cuDNN takes no expanded tensors
        hx = _as_torch(tuple([s.contiguous() for s in first]), call.batched)
    if lengths is None:
        return module.torch_class.forward(module, input, hx)  # type: ignore[no-any-return]
    steps, rows = (input.size(i) for i in ((1, 0) if module.batch_first else (0, 1)))
    lengths = batches.check_lengths(lengths, steps, rows)
    if rows == 0:
        # torch does not pack a batch without rows
        return module.torch_class.forward(module, input, hx)  # type: ignore[no-any-return]
    packed = pack_padded_sequence(input, lengths, module.batch_first, enforce_sorted=False)
    output, hidden = module.torch_class.forward(module, packed, hx)
    output, _ = pad_packed_sequence(output, module.batch_first, total_length=steps)
    return output, hidden
