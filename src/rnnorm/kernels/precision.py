"""The precision of float32 products on a GPU: fused kernels follow the switch of cuDNN's layers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_library: Any = torch._C
# torch 2.9 has a switch for each library and operation; torch.backends reads it with ten times
# the overhead
_SWITCHES = hasattr(_library, "_get_fp32_precision_getter")
_CUDNN, _MATMUL = ("cuda", "rnn"), ("cuda", "matmul")
# a switch that is not set shows the value of the next one
_PARENTS = {_MATMUL: ("cuda", "all"), ("cuda", "all"): ("generic", "all")}


def float32_precision() -> str:
    """Return ``"tf32"`` if cuDNN's layers or torch's products may multiply so, else ``"ieee"``."""
    # without cuDNN, torch.nn's layers multiply by torch's products
    cudnn = _library._get_cudnn_enabled() and not torch.version.hip
    if _SWITCHES:
        allowed = _shown(_MATMUL) == "tf32" or (cudnn and _shown(_CUDNN) == "tf32")
    else:
        allowed = torch.backends.cuda.matmul.allow_tf32
        allowed = allowed or (cudnn and torch.backends.cudnn.allow_tf32)
    return "tf32" if allowed else "ieee"


_lock = threading.Lock()
# contexts of all threads that need the switch, and its value before the first of them
_users, _before = 0, ""


@contextmanager
def as_in_cudnn(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Let torch's products of a dtype on a GPU multiply in ``float32_precision()`` meanwhile.

    The switch is the process's: products of other threads may be in tf32 meanwhile, too.
    """
    global _users, _before
    if device.type != "cuda" or dtype != torch.float32 or float32_precision() != "tf32":
        yield
        return
    with _lock:
        switched = _users > 0 or _shown(_MATMUL) != "tf32"
        if switched:
            if not _users:
                _before = _stored(_MATMUL)
                _set(_MATMUL, "tf32")
            _users += 1
    try:
        yield
    finally:
        if switched:
            with _lock:
                _users -= 1
                if not _users:
                    _set(_MATMUL, _before)


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Set the switches of cuDNN's layers and of torch's products meanwhile.

    Args:
        precision: ``"tf32"`` or ``"ieee"``.
    """
    before = {switch: _shown(switch) for switch in (_CUDNN, _MATMUL)}
    for switch in before:
        _set(switch, precision)
    try:
        yield
    finally:
        for switch, value in before.items():
            _set(switch, value)


def _shown(switch: tuple[str, str]) -> str:
    """Return the value by which a switch acts: ``"tf32"``, ``"ieee"`` or, like it, ``"none"``."""
    if _SWITCHES:
        return str(_library._get_fp32_precision_getter(*switch))
    owner = torch.backends.cudnn if switch == _CUDNN else torch.backends.cuda.matmul
    return "tf32" if owner.allow_tf32 else "ieee"


def _set(switch: tuple[str, str], value: str) -> None:
    if _SWITCHES:
        _library._set_fp32_precision_setter(*switch, value)
        return
    owner: Any = torch.backends.cudnn if switch == _CUDNN else torch.backends.cuda.matmul
    owner.allow_tf32 = value == "tf32"


def _stored(switch: tuple[str, str]) -> str:
    """Return the value that a switch has been set to, ``"none"`` if it shows another one's."""
    value, parent = _shown(switch), _PARENTS.get(switch)
    if not _SWITCHES or parent is None or value == "none" or value != _shown(parent):
        return value
    # torch tells only the value shown, so the parent is changed to see whether the switch follows
    kept = _stored(parent)
    _set(parent, "tf32" if value == "ieee" else "ieee")
    try:
        return value if _shown(switch) == value else "none"
    finally:
        _set(parent, kept)
