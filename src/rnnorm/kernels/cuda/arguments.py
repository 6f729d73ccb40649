"""The arguments of the kernels of many steps, as structs of C."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from rnnorm.kernels.inputs import Inputs, Options


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Return fields of one kind of a struct."""
    return [(name, kind) for name in names.split()]


class CSite(ctypes.Structure):
    """A site's scale, shift and statistics."""

    _fields_ = [
        *_fields(ctypes.c_void_p, "gamma shift mean var"),
        *_fields(ctypes.c_int, "row skip pitch unused"),
    ]


class CMask(ctypes.Structure):
    """A mask of recurrent dropout."""

    _fields_ = [
        ("drawn", ctypes.c_void_p),
        ("step", ctypes.c_longlong),
        ("row", ctypes.c_int),
        ("scale", ctypes.c_float),
    ]


class Extra(ctypes.Structure):
    """The resets, weights by unit and masks that only some layers have."""

    _fields_ = [
        ("reset", ctypes.c_void_p),
        ("weight", ctypes.c_void_p * 3),
        *_fields(CMask, "hidden candidate zone_h zone_c"),
        *_fields(ctypes.c_int, "rows unused"),
    ]


class BlockExchange(ctypes.Structure):
    """Where blocks exchange numbers."""

    _fields_ = [
        *_fields(ctypes.c_void_p, "numbers partial state"),
        *_fields(ctypes.c_int, "stride pieces chunk unused"),
    ]


_LAST = [
    ("hidden", CSite),
    ("out", CSite),
    ("starts", ctypes.c_void_p),
    ("extra", Extra),
    ("exchange", BlockExchange),
    *_fields(ctypes.c_longlong, "before_pitch pitch"),
    *_fields(ctypes.c_int, "first stop units"),
]


class ForwardArguments(ctypes.Structure):
    """The struct of the same name in ``forward.cu``."""

    _fields_ = [
        *_fields(ctypes.c_void_p, "x z before before_h c h fresh narrow seen weight"),
        *_LAST,
        ("eps", ctypes.c_float),
    ]


class BackwardArguments(ctypes.Structure):
    """The struct of the same name in ``backward.cu``."""

    _fields_ = [
        *_fields(ctypes.c_void_p, "x z before states before_h h output product carried last carry"),
        *_fields(ctypes.c_void_p, "carried_h carry_h d_x d_z operand d_gamma d_shift d_gamma_out"),
        *_fields(ctypes.c_void_p, "d_shift_out d_weight weight"),
        *_LAST,
        ("later", ctypes.c_int),
        ("eps", ctypes.c_float),
        ("unused", ctypes.c_int),
    ]


def extra_of(inputs: Inputs, options: Options) -> Extra:
    """Return where a call has its resets, weights by unit and masks."""
    weights = [None if each is None else each.data_ptr() for each in inputs.peepholes]
    reset = None if inputs.reset is None else inputs.reset.data_ptr()
    masks = map(_mask, inputs.masks, options.scales)
    return Extra(reset, (ctypes.c_void_p * 3)(*weights), *masks, inputs.x.size(1), 0)


def _mask(drawn: Tensor | None, scale: float) -> CMask:
    if drawn is None:
        return CMask(None, 0, 0, scale)
    steps, rows, units = drawn.shape
    # one number may serve all steps or rows
    row = units if rows > 1 else 0
    return CMask(drawn.data_ptr(), rows * units if steps > 1 else 0, row, scale)


def site_of(*values: Any) -> CSite:
    """Return a site of four tensors and three numbers, in the order of the fields of ``CSite``."""
    *tensors, row, skip, pitch = values
    return CSite(*[tensor.data_ptr() for tensor in tensors], row, skip, pitch, 0)
