"""Layers from the weights of other libraries.

Each function takes the ``state_dict`` of a layer, or of its part of a model, and returns a layer of
rnnorm that computes the same. Values are tensors or what :func:`torch.as_tensor` takes, such as
NumPy arrays. Names may have a common beginning (``"decoder.rnn."``), slashes in place of dots, and
TensorFlow's ``":0"`` at the end. Layers that are numbered in their names become one layer with
``num_layers``. What cannot be read from weights is an argument. Dropout is not converted: it and
other options, such as ``batch_first``, are keyword arguments of the returned class.
"""

from __future__ import annotations

from rnnorm.convert.families import haste, torch_nn
from rnnorm.convert.gru import dreamer, speechbrain_ligru, speechbrain_sligru
from rnnorm.convert.lstm import (
    fastrnns,
    layer_norm_basic,
    sketch_rnn,
    tf_addons,
    torchaudio_rnnt,
)

__all__ = [
    "dreamer",
    "fastrnns",
    "haste",
    "layer_norm_basic",
    "sketch_rnn",
    "speechbrain_ligru",
    "speechbrain_sligru",
    "tf_addons",
    "torch_nn",
    "torchaudio_rnnt",
]
