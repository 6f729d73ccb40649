"""TorchRL's recurrent modules with layers of rnnorm: norms, and resets within a window."""

from __future__ import annotations

from typing import Any

import torchrl.modules
from tensordict import TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor

from rnnorm.layers.call.checks import as_hx
from rnnorm.layers.gru import GRU
from rnnorm.layers.lstm import LSTM
from rnnorm.layers.sequence_layer import SequenceLayer
from rnnorm.tracing import values_unknown

__all__ = ["GRUModule", "LSTMModule"]


class _Module:
    """Base of the two modules: a subclass names its layer and TorchRL's argument of it."""

    layer_class: type[SequenceLayer]
    name: str
    in_keys: list[Any]
    out_keys: list[Any]
    recurrent_mode: bool

    def __init__(self, *args: Any, step_key: Any = None, **options: Any) -> None:
        name = self.name
        keys = ("in_key", "in_keys", "out_key", "out_keys", "default_recurrent_mode")
        given = {key: options.pop(key) for key in keys if key in options}
        layer = options.pop(name, None)
        if layer is None:
            layer = self.layer_class(*args, **{"batch_first": True, **options})
        elif args or options:
            raise ValueError(f"{name} must be given alone, without the arguments of a layer")
        if not isinstance(layer, self.layer_class):
            raise TypeError(
                f"{name} must be a rnnorm.{self.layer_class.__name__}, got {type(layer).__name__}: "
                f"TorchRL's own {type(self).__name__} takes torch.nn's"
            )
        super().__init__(**{name: layer}, **given)
        self.step_key = step_key
        # TorchRL's losses and collectors hand a module only what it names here
        if step_key is not None and step_key not in self.in_keys:
            self.in_keys = [*self.in_keys, step_key]

    def make_python_based(self) -> Any:
        """Refuse a conversion to TorchRL's own layer, which would drop the norm.

        Raises:
            RuntimeError: if the method is called.
        """
        raise RuntimeError("a layer of rnnorm has no other form: TorchRL's would drop its norm")

    def make_cudnn_based(self) -> Any:
        """Refuse a conversion, as ``make_python_based`` does.

        Raises:
            RuntimeError: if the method is called.
        """
        return self.make_python_based()

    @dispatch  # type: ignore[untyped-decorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Run the layer over one step or, in recurrent mode, over the last dimension of the batch.

        Args:
            tensordict: holds the input, ``"is_init"``, and the states that the first step
                continues; without these it begins anew.

        Returns:
            the tensordict, with the output and the states after each step.

        Raises:
            KeyError: if the input or ``"is_init"`` is missing.
            ValueError: if in recurrent mode there is no dimension of time.
            RuntimeError: if some states are missing.
        """
        layer: SequenceLayer = getattr(self, self.name)
        if not self.recurrent_mode:
            data = tensordict.reshape(-1).unsqueeze(-1)
        elif tensordict.ndim == 0:
            raise ValueError("in recurrent mode the batch must have a last dimension of time")
        else:
            data = tensordict.unsqueeze(0) if tensordict.ndim == 1 else tensordict.flatten(0, -2)
        is_init: Tensor = data["is_init"].squeeze(-1)
        value: Tensor = data[self.in_keys[0]]
        keys = self.in_keys[1 : len(self.out_keys)]
        states = [data.get(key, None) for key in keys]
        hx: Any = None
        if any(s is not None for s in states):
            if any(s is None for s in states):
                raise RuntimeError(f"all or none of the states {keys} must be there")
            hx = as_hx(tuple(s[:, 0].transpose(0, 1).contiguous() for s in states))
        step = None
        if self.step_key is not None and not (layer.training and layer._has_statistics()):
            step = data[self.step_key].reshape(is_init.shape)[:, 0]
        begins = values_unknown(is_init) or bool(is_init.any())
        output, last, *every = layer(
            value,
            hx,
            step=step,
            reset=is_init if begins else None,
            return_states=self.recurrent_mode,
        )
        # one step's states are its final ones
        found = every[0] if every else last
        found = found if isinstance(found, tuple) else (found,)
        if not every:
            found = tuple(s.transpose(0, 1).unsqueeze(1) for s in found)
        for key, result in zip(self.out_keys, (output, *found), strict=True):
            data.set(key, result)
        return tensordict.update(data.reshape(tensordict.shape))


class LSTMModule(_Module, torchrl.modules.LSTMModule):  # type: ignore[misc]
    """TorchRL's ``LSTMModule`` with a layer of rnnorm.

    It has TorchRL's keys, primer and recurrent mode. Where ``"is_init"`` is True a trajectory
    begins as the layer begins a call without ``hx``: in both modes, and whatever state the
    tensordict holds there. In recurrent mode the states after every step are written, not those
    at the ends of trajectories alone.

    Args:
        *args: arguments of :class:`rnnorm.LSTM`, which reads rows first (``batch_first``).
        step_key: key of the number of steps since the trajectory began, such as the
            ``"step_count"`` of TorchRL's ``StepCounter``, for batch normalisation with statistics
            for each step; unused while statistics are taken.
        **options: further arguments of :class:`rnnorm.LSTM`, or ``lstm``, a layer with
            ``batch_first``; and of TorchRL's module ``in_key`` or ``in_keys``, ``out_key`` or
            ``out_keys``, and ``default_recurrent_mode``.

    Raises:
        ValueError, TypeError: as TorchRL's module and :class:`rnnorm.LSTM`.
    """

    layer_class = LSTM
    name = "lstm"


class GRUModule(_Module, torchrl.modules.GRUModule):  # type: ignore[misc]
    """TorchRL's ``GRUModule`` with a layer of rnnorm; see :class:`LSTMModule`.

    Args:
        *args: arguments of :class:`rnnorm.GRU`.
        step_key: as of :class:`LSTMModule`.
        **options: as of :class:`LSTMModule`, with ``gru`` in place of ``lstm``.

    Raises:
        ValueError, TypeError: as TorchRL's module and :class:`rnnorm.GRU`.
    """

    layer_class = GRU
    name = "gru"
