"""Converters of LSTMs with layer normalisation."""

from __future__ import annotations

from typing import Any

import torch

from rnnorm.convert.stack import (
    Position,
    StateDict,
    build,
    check_no_bias,
    check_shape,
    gates,
    halves,
    preset,
    read,
    renamed,
)
from rnnorm.layers.lstm import LSTM


def torchaudio_rnnt(state_dict: StateDict, *, eps: float = 1e-5, **options: Any) -> LSTM:
    """Return the layer of torchaudio's ``_CustomLSTM``, which its RNN-T prediction network has.

    Args:
        state_dict: ``x2g.weight``, ``p2g.weight``, ``g_norm.weight`` and so on; without the norms
            the layer has none.
        eps: ``layer_norm_epsilon``.
        **options: arguments of the class.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    norms = ("g_norm.weight", "g_norm.bias", "c_norm.weight", "c_norm.bias")
    layers = read(state_dict, ("x2g.weight", "p2g.weight"), (), ("x2g.bias",), norms)
    names = {
        "x2g.weight": "weight_ih",
        "p2g.weight": "weight_hh",
        "x2g.bias": "bias_ih",
        "g_norm.weight": "gamma_joint",
        "g_norm.bias": "bias_ih",
        "c_norm.weight": "gamma_carry",
        "c_norm.bias": "beta_carry",
    }
    normalised = "g_norm.weight" in layers[Position()]
    if normalised:
        check_no_bias(layers, "x2g.bias")
    norm = preset("torchaudio-rnnt", eps) if normalised else None
    return build(LSTM, renamed(layers, names), options, norm=norm)


def fastrnns(state_dict: StateDict, *, eps: float = 1e-5, **options: Any) -> LSTM:
    """Return the layer of fastrnns' ``LayerNormLSTMCell`` (PyTorch's benchmarks), or NeMo's.

    NeMo has a copy of it, ``ln_lstm``, in its RNN-T prediction networks.

    Args:
        state_dict: ``weight_ih``, ``weight_hh``, ``layernorm_i.weight`` and so on.
        eps: of the three norms.
        **options: arguments of the class.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    names = {
        "weight_ih": "weight_ih",
        "weight_hh": "weight_hh",
        "layernorm_i.weight": "gamma_input",
        "layernorm_i.bias": "bias_ih",
        "layernorm_h.weight": "gamma_recurrent",
        "layernorm_h.bias": "bias_hh",
        "layernorm_c.weight": "gamma_carry",
        "layernorm_c.bias": "beta_carry",
    }
    layers = renamed(read(state_dict, ("weight_ih", "weight_hh"), [*names][2:]), names)
    return build(LSTM, layers, options, norm=preset("fastrnns", eps))


def tf_addons(state_dict: StateDict, *, eps: float = 1e-3, **options: Any) -> LSTM:
    """Return the layer of TensorFlow Addons' ``LayerNormLSTMCell``.

    Args:
        state_dict: ``kernel``, ``recurrent_kernel``, ``bias``, ``kernel_norm/gamma`` and so on.
        eps: ``norm_epsilon``.
        **options: arguments of the class.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    norms = [f"{k}_norm.{v}" for k in ("kernel", "recurrent", "state") for v in ("gamma", "beta")]
    weights = {
        position: {
            "weight_ih": given["kernel"].t(),
            "weight_hh": given["recurrent_kernel"].t(),
            # the bias besides the two β
            "bias_ih": beta
            + check_shape("bias", given.get("bias", torch.zeros_like(beta)), beta.shape),
            "bias_hh": given["recurrent_norm.beta"],
            "gamma_input": given["kernel_norm.gamma"],
            "gamma_recurrent": given["recurrent_norm.gamma"],
            "gamma_carry": given["state_norm.gamma"],
            "beta_carry": given["state_norm.beta"],
        }
        for position, given in read(
            state_dict, ("kernel", "recurrent_kernel"), norms, ("bias",)
        ).items()
        for beta in [given["kernel_norm.beta"]]
    }
    return build(LSTM, weights, options, norm=preset("tf-addons", eps))


def layer_norm_basic(
    state_dict: StateDict, *, forget_bias: float = 1.0, eps: float = 1e-12, **options: Any
) -> LSTM:
    """Return the layer of TensorFlow's ``LayerNormBasicLSTMCell`` (``tf.contrib.rnn``).

    Args:
        state_dict: ``kernel``, and ``gamma`` and ``beta`` of ``input``, ``transform``, ``forget``,
            ``output`` and ``state``.
        forget_bias: what the cell adds to the forget gate.
        eps: of the norms, 1e-12 in ``tf.contrib.layers``.
        **options: arguments of the class.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    four = ("input", "forget", "transform", "output")
    norms = [f"{gate}.{kind}" for gate in (*four, "state") for kind in ("gamma", "beta")]
    weights = {}
    for position, given in read(state_dict, ("kernel",), norms).items():
        # rows of i j f o
        matrix = gates(given["kernel"].t(), (0, 2, 1, 3))
        weight_ih, weight_hh = halves(matrix, len(matrix) // 4)
        beta = [given[f"{gate}.beta"] for gate in four]
        beta[1] = beta[1] + forget_bias
        weights[position] = {
            "weight_ih": weight_ih,
            "weight_hh": weight_hh,
            "bias_ih": torch.cat(beta),
            "gamma_joint": torch.cat([given[f"{gate}.gamma"] for gate in four]),
            "gamma_carry": given["state.gamma"],
            "beta_carry": given["state.beta"],
        }
    return build(LSTM, weights, options, norm=preset("layer-norm-basic", eps))


def sketch_rnn(
    state_dict: StateDict, *, forget_bias: float = 1.0, eps: float = 1e-3, **options: Any
) -> LSTM:
    """Return the layer of magenta's ``LayerNormLSTMCell`` in sketch-rnn.

    Args:
        state_dict: ``W_xh``, ``W_hh``, ``ln_all/ln_gamma``, ``ln_all/ln_beta``, ``ln_c/ln_gamma``,
            ``ln_c/ln_beta``.
        forget_bias: what the cell adds to the forget gate.
        eps: of the norms.
        **options: arguments of the class.

    Raises:
        TypeError: if ``state_dict`` is a module, for example.
        ValueError: if a name is missing or unknown, or a shape does not fit.
    """
    norms = [f"{where}.ln_{kind}" for where in ("ln_all", "ln_c") for kind in ("gamma", "beta")]
    order = (0, 2, 1, 3)
    weights = {}
    for position, given in read(state_dict, ("W_xh", "W_hh"), norms).items():
        beta = gates(given["ln_all.ln_beta"], order).clone()
        beta.chunk(4)[1].add_(forget_bias)
        weights[position] = {
            "weight_ih": gates(given["W_xh"].t(), order),
            "weight_hh": gates(given["W_hh"].t(), order),
            "bias_ih": beta,
            "gamma_joint": gates(given["ln_all.ln_gamma"], order),
            "gamma_cell": given["ln_c.ln_gamma"],
            "beta_cell": given["ln_c.ln_beta"],
        }
    return build(LSTM, weights, options, norm=preset("sketch-rnn", eps))
