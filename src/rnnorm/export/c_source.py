"""A frozen layer as a stream in C99: one file and its header, without a library or allocation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rnnorm.export.c_text import Source
from rnnorm.export.output_files import check_path, naming, written_whole
from rnnorm.export.stream import Stream, check_layer, read, run
from rnnorm.model.freeze import freeze

# a larger difference in float64 is another function; few frames, since a recurrence may enlarge
# rounding from step to step
_TOLERANCE = 1e-6
_FRAMES = 64
# headers of C99, then of C11 and C23, then those that they include in some libraries: where a
# compiler looks for headers, a file of the same name would replace one
_HEADERS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdarg "
    "stdbool stddef stdint stdio stdlib string tgmath time wchar wctype "
    "stdalign stdatomic stdnoreturn threads uchar stdbit stdckdint "
    "alloca endian features newlib strings"
)


class CStream(NamedTuple):
    """Cost of a stream in C, and its difference from the layer.

    Args:
        flash: bytes of its constants; the code comes on top.
        ram: bytes of the state of one stream.
        stack: bytes of the stack in a call, without those of ``expf`` and ``tanhf``.
        multiplications: multiplications of matrices in a frame, in 8 bits where quantised.
        error: root mean square of the difference from the layer, relative to the outputs'.
        largest_error: largest absolute difference.
    """

    flash: int
    ram: int
    stack: int
    multiplications: int
    error: float
    largest_error: float


def c(
    layer: nn.Module,
    path: str | Path,
    quantize: Literal["int8"] | None = None,
    *,
    linear: nn.Linear | None = None,
    frames: Tensor | None = None,
) -> CStream:
    """Write a layer in evaluation as a stream in C99: a file and, beside it, its header.

    The header declares ``NAME_reset`` and ``NAME_frame``, where NAME is that of the file, and in
    capitals the constants ``NAME_INPUTS`` and ``NAME_OUTPUTS``. A stream is what a frozen copy of
    the layer computes from ``step=0`` on, one frame after the other. The code needs ``expf``,
    ``tanhf``, ``sqrtf`` and, in 8 bits, ``lrintf`` of C's library, and no memory besides the state
    that the caller holds and the stack.

    With ``"int8"`` the weights are whole numbers of 8 bits with a scale for each row. What they
    are multiplied with, a frame or h, is rounded to 8 bits at each step by its own largest value,
    so that no data are needed to choose scales. States, norms and gates are float.

    Args:
        layer: an RNN, LSTM or GRU of rnnorm with any number of layers, norm and learned initial
            states; a frozen copy is exported. Bidirectional layers, projections, peepholes,
            zoneout, initial states from the input and another ``reset_after`` are refused.
        path: path of the file, ``NAME.c``; its name is a name in C, and none of C's own headers.
        quantize: None for float, or ``"int8"``.
        linear: applied to each output of the layer, such as the last layer of a classifier; the
            stream then returns its results.
        frames: input of the layer on which the difference is measured, such as real sequences of
            equal length; by default 4 rows of 64 frames of unit noise.

    Returns:
        what the stream costs, and its difference from the layer; both also stand in the file. The
        difference is that of the same arithmetic in PyTorch, not of a compiled program.

    Raises:
        TypeError: if ``layer``, ``linear`` or ``frames`` is of another type.
        ValueError: if an option of the layer is refused, a value or a result of the stream is not
            finite in float32, ``quantize``, the name of the file, the size of ``linear`` or
            ``frames`` does not fit, or ``path`` is a device or pipe.
        RuntimeError: if the layer computes another function than its parameters say, as with
            hooks.
        FileNotFoundError: if the folder of ``path`` does not exist.
        IsADirectoryError: if ``path`` or its header is a folder.
    """
    path = Path(path)
    check_layer(layer)
    _check(layer, path, quantize, linear, frames)
    # in float64 a difference is an error, and no rounding
    frozen: Any = freeze(layer).cpu().double()
    last = None if linear is None else freeze(linear).cpu().double()
    stream = read(frozen, last)
    source = Source(stream, path.stem, quantize == "int8")
    with torch.autocast("cpu", enabled=False):
        errors = _measure(frozen, last, stream, frames, quantize == "int8")
    costs = CStream(*source.costs(), *errors)
    comment = [
        f"{type(frozen).__name__}({frozen.extra_repr()})"
        + ("" if linear is None else f", then Linear({linear.extra_repr()})"),
        "One frame after the other; written by rnnorm.export.c.",
        "",
        f"flash: {costs.flash} bytes of constants, besides about 1 KiB of code",
        f"RAM: {costs.ram} bytes for each stream, in {path.stem}_state",
        f"stack: {costs.stack} bytes at most, besides that of expf and tanhf",
        f"a frame: {costs.multiplications} multiplications of matrices in "
        f"{'float' if quantize is None else '8 bits'}, besides those of norms and gates, and "
        f"{source.functions()}",
        f"difference from the layer, on {'noise' if frames is None else 'frames of its data'}: "
        f"{costs.error:.2e} of its outputs (root mean square), {costs.largest_error:.2e} at most",
    ]
    texts = {path.with_suffix(".h"): source.header(), path: source.text(comment)}
    with written_whole(*texts) as partial:
        for part, (file, text) in zip(partial, texts.items(), strict=True):
            with naming(file):
                part.write_text(f"{text}\n", encoding="utf-8")
    return costs


def _check(layer: Any, path: Path, quantize: object, linear: object, frames: object) -> None:
    """Refuse arguments that do not fit, as ``c`` says."""
    if quantize not in (None, "int8"):
        raise ValueError(f"quantize must be None or 'int8', got {quantize!r}")
    name = path.stem
    if path.suffix != ".c" or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(
            "path must end with a name in C and .c, of letters, digits and underscores, as in "
            f"stream.c, got {path.name!r}"
        )
    # some file systems take math.h for Math.h
    if name.lower() in _HEADERS.split():
        raise ValueError(f"path must not be named as a header of C's library, got {path.name!r}")
    if linear is not None:
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be a torch.nn.Linear, got {type(linear).__name__}")
        if linear.in_features != layer.hidden_size:
            raise ValueError(
                f"linear must have {layer.hidden_size} inputs, as many as the layer has outputs, "
                f"got {linear.in_features}"
            )
        if not linear.out_features:
            raise ValueError("linear must have an output, got out_features=0")
    if frames is not None:
        if not isinstance(frames, Tensor):
            raise TypeError(f"frames must be a tensor, got {type(frames).__name__}")
        if frames.is_complex():
            raise TypeError(f"frames must be real, got {frames.dtype}")
        if not frames.numel() or not frames.float().isfinite().all():
            raise ValueError("frames must be finite values in float32, one frame or more")
        if frames.dim() not in (2, 3) or frames.size(-1) != layer.input_size:
            raise ValueError(
                f"frames must be an input of the layer, (T, {layer.input_size}) or with rows, got "
                f"shape {tuple(frames.shape)}"
            )
    check_path(path, path.with_suffix(".h"))


@torch.no_grad()
def _measure(
    layer: Any, last: nn.Linear | None, stream: Stream, frames: Tensor | None, quantised: bool
) -> tuple[float, float]:
    """Return the relative and the largest difference of the stream's arithmetic from a layer.

    Raises:
        ValueError: if float32 overflows in the stream.
        RuntimeError: if the stream computes another function than the layer.
    """
    if frames is None:
        generator, size = torch.Generator("cpu").manual_seed(0), (_FRAMES, 4, layer.input_size)
        frames = torch.randn(size, generator=generator, device="cpu")
        frames = frames.transpose(0, 1) if layer.batch_first else frames
    x = frames.detach().cpu().double()
    want = layer(x)[0]
    want = want if last is None else last(want)
    if x.dim() == 2:
        x, want = x.unsqueeze(1), want.unsqueeze(1)
    elif layer.batch_first:
        x, want = x.transpose(0, 1), want.transpose(0, 1)
    size = want.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    few = x[:_FRAMES]
    found = run(stream, few)
    # a recurrence may enlarge rounding: frames after that say nothing of the function
    moved = (run(_jittered(stream), few) - found).abs().amax((1, 2))
    close = (moved > 1e-3 * _TOLERANCE * size).cumsum(0) == 0
    apart = (found - want[:_FRAMES])[close].square().mean().sqrt() / size
    if not apart <= _TOLERANCE:
        raise RuntimeError(
            f"the layer's outputs differ by {apart:.1e} of their size from what its parameters say:"
            " undo what changes them, such as forward hooks of its own or of linear, or a forward "
            "of a subclass"
        )
    difference = run(stream, x.float(), quantised).double() - want
    if not difference.isfinite().all():
        raise ValueError(
            "frames and weights must be so small that float32 holds what the stream computes, got "
            f"results that are not finite from {len(x)} frames of up to {float(x.abs().max()):.1e},"
            " which are noise unless you give frames="
        )
    return float(difference.square().mean().sqrt() / size), float(difference.abs().max())


def _jittered(stream: Stream) -> Stream:
    """Return a stream whose weights differ in the last bit, which silent frames would not show."""
    factor = 1 + torch.finfo(torch.float64).eps
    layers = [
        each._replace(
            ih=each.ih._replace(weight=factor * each.ih.weight),
            hh=each.hh._replace(weight=factor * each.hh.weight),
        )
        for each in stream.layers
    ]
    return stream._replace(layers=layers)
