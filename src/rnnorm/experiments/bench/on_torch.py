"""A recipe's model on torch.nn's layers: what ours are to be as fast as."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class _Packed(nn.RNNBase):
    """torch.nn's layer with the arguments of ours: rows that end before are packed and unpacked."""

    def forward(
        self, input: Tensor, hx: Any = None, *, lengths: Any = None, step: int = 0
    ) -> tuple[Tensor, Any]:
        if lengths is None:
            return super().forward(input, hx)  # type: ignore[no-any-return]
        packed = pack_padded_sequence(input, lengths.cpu(), enforce_sorted=False)
        output, state = super().forward(packed, hx)
        return pad_packed_sequence(output, total_length=len(input))[0], state


class _LSTM(_Packed, nn.LSTM): ...  # type: ignore[misc]


class _GRU(_Packed, nn.GRU): ...  # type: ignore[misc]


class _RNN(_Packed, nn.RNN): ...  # type: ignore[misc]


_KINDS = {"LSTM": _LSTM, "GRU": _GRU, "RNN": _RNN}


def put_on_torch(model: nn.Module) -> None:
    """Replace the recurrent layers of a model by those of torch.nn, with the same weights.

    Args:
        model: whose layers are ``(T, B, ·)``.

    Raises:
        ValueError: there is none, or torch.nn has no such layer: it has a norm, noise, a learned
            initial state, recurrent dropout, or another cell.
    """
    found = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.RNNBase)
    ]
    if not found:
        raise ValueError("the model has no recurrent layer to put on torch.nn")
    for parent, name, layer in found:
        kind = _KINDS.get(type(layer).__name__)
        options = ("bidirectional", "dropout", "num_layers", "bias")
        given: dict[str, Any] = {each: getattr(layer, each) for each in options}
        if layer.mode.startswith("RNN_"):
            given["nonlinearity"] = layer.mode.removeprefix("RNN_").lower()
        plain = kind(layer.input_size, layer.hidden_size, **given) if kind else None
        # what torch.nn has not has weights, buffers or words of its own in the repr
        if plain is None or repr(plain)[1:] != repr(layer):
            what = f"{type(layer).__name__}({layer.extra_repr()})"
            raise ValueError(f"torch.nn has no such layer as {name}: {what}")
        plain.load_state_dict(layer.state_dict())
        setattr(parent, name, plain.to(next(layer.parameters())))
