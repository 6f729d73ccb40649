"""The text of a stream in C, made of the pieces in ``stream.c``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import Tensor

from rnnorm.export.stream import Layer, Matrix, Rows, Steps, Stream, quantise
from rnnorm.norm.spec import CELL_SITES, LayerNorm

# variables and saved registers of the functions, without their arrays; measured for Cortex-M4
_FRAME = 256
# calls of expf and tanhf a unit
_CALLS = {"RNN": (0, 1), "GRU": (2, 1), "LSTM": (3, 2)}
_ACTIVATIONS = {"tanh": "tanhf(z[k])", "relu": "z[k] < 0.0f ? 0.0f : z[k]"}


class Source:
    """The text of a stream in C, and what it costs.

    Args:
        stream: what is computed.
        name: name of the file, with which its functions begin.
        quantised: whether products are in 8 bits.

    Raises:
        ValueError: if a value is not finite in float32.
    """

    def __init__(self, stream: Stream, name: str, quantised: bool) -> None:
        self.stream, self.name, self.quantised = stream, name, quantised
        text = Path(__file__).with_name("stream.c").read_text(encoding="utf-8")
        _, *parts = re.split(r"^//: (.+)\n", text, flags=re.MULTILINE)
        self.pieces = {
            title: piece.strip("\n") for title, piece in zip(parts[::2], parts[1::2], strict=True)
        }
        self.cell = type(stream.cell).__name__
        self.gates = sum(stream.cell.gates)
        self.inputs = stream.layers[0].ih.weight.size(1)
        self.outputs = stream.units if stream.linear is None else len(stream.linear.weight)
        self.sites = stream.layers[0].sites
        self.aged = any(isinstance(site, Steps) for site in self.sites.values())
        self.arrays: list[str] = []
        self.flash = 0
        tables = [self._value(f"layer{k}", _layer(each)) for k, each in enumerate(stream.layers)]
        rows = ",\n".join(f"    {table}" for table in tables)
        self.tables = [f"static const Layer layers[LAYERS] = {{\n{rows},\n}};"]
        if stream.linear is not None:
            matrix = self._value("linear", _matrix(stream.linear))
            self.tables.append(f"static const Matrix linear = {matrix};")
        for state, values in stream.first.items():
            self._value(f"first_{state}", values)

    def costs(self) -> tuple[int, int, int, int]:
        """Return bytes of flash, of RAM and of the stack, and multiplications a frame."""
        stream = self.stream
        ram = 4 * stream.units * len(stream.layers) * len(stream.cell.states) + 4 * self.aged
        stack = 4 * 2 * self.gates * stream.units + self._widest() * self.quantised + _FRAME
        products = sum(each.weight.numel() for each in self._matrices())
        return self.flash, ram, stack, products

    def functions(self) -> str:
        """Return the calls of ``expf`` and ``tanhf`` in a frame, as text."""
        units = self.stream.units * len(self.stream.layers)
        exps, tanhs = _CALLS[self.cell]
        relu = getattr(self.stream.cell, "nonlinearity", None) == "relu"
        return f"{exps * units} calls of expf, {0 if relu else tanhs * units} of tanhf"

    def header(self) -> str:
        """Return the text of the header."""
        members = [
            f"float {state}[{len(self.stream.layers)}][{self.stream.units}];"
            for state in self.stream.cell.states
        ]
        return self._fill(
            "header",
            inputs=self.inputs,
            outputs=self.outputs,
            members="\n".join(members + ["uint32_t age; /* in frames */"] * self.aged),
        )

    def text(self, comment: list[str]) -> str:
        """Return the text of the file, with the lines of a comment at its top."""
        states, kind = self.stream.cell.states, "int8" if self.quantised else "float"
        first = [f"first_{s}[k * UNITS + i]" if self.stream.first else "0.0f" for s in states]
        return self._fill(
            "source",
            comment="\n".join(_wrapped(comment)),
            layers=len(self.stream.layers),
            units=self.stream.units,
            gates=self.gates,
            structs="\n\n".join(self._structs(kind)),
            constants="\n\n".join([*self.arrays, *self.tables]),
            functions="\n\n".join(self._functions(kind)),
            reset="\n".join(f"state->{s}[k][i] = {v};" for s, v in zip(states, first, strict=True)),
            young="state->age = 0;" * self.aged,
            states=", ".join([f"state->{s}[k]" for s in states] + ["state->age"] * self.aged),
            older="state->age += state->age < UINT32_MAX;" * self.aged,
            output="for (int i = 0; i < UNITS; ++i)\n    output[i] = x[i];"
            if self.stream.linear is None
            else "product(output, &linear, x);",
        )

    def _structs(self, kind: str) -> Iterator[str]:
        """Yield the types of the constants."""
        types = {site: type(each) for site, each in self.sites.items()}
        yield self.pieces[f"{kind} matrix"]
        if Steps in types.values():
            yield self.pieces["steps"]
        if Rows in types.values():
            yield self.pieces["row_norm"]
        names = {Steps: "Steps", Rows: "RowNorm"}
        members = [f"    {names[each]} {site};\n" for site, each in types.items()]
        yield f"typedef struct {{\n    Matrix ih, hh;\n{''.join(members)}}} Layer;"

    def _functions(self, kind: str) -> Iterator[str]:
        """Yield the functions that the layers need, and the cell's step."""
        yield self._fill(f"{kind} product", widest=self._widest())
        if self.aged:
            yield self.pieces["scale_and_shift"]
        norms = {_function(site) for site in self.sites.values() if isinstance(site, Rows)}
        yield from (self.pieces[name] for name in sorted(norms))
        if _CALLS[self.cell][0]:
            yield self.pieces["sigmoid"]
        nonlinearity = _ACTIVATIONS[getattr(self.stream.cell, "nonlinearity", "tanh")]
        calls = {site: self._call(site) for site in self.stream.cell.sites}
        age = ", uint32_t age" * self.aged
        yield self._fill(self.cell, age=age, nonlinearity=nonlinearity, **calls)

    def _call(self, site: str) -> str:
        """Return the lines that normalise a site, none where it is not or is folded."""
        values = "term" if site in ("recurrent", "cell") else "c" if site == "carry" else "z"
        own = self.sites.get(site)
        if own is None:
            return ""
        if isinstance(own, Steps):
            count = "UNITS" if site in CELL_SITES else "WIDTH"
            return f"scale_and_shift({values}, &layer->{site}, age, {count});"
        ends = [sum(own.widths[: k + 1]) for k in range(len(own.widths))]
        return "\n".join(
            f"{_function(own)}({values}, &layer->{site}, {end - width}, {end});"
            for end, width in zip(ends, own.widths, strict=True)
        )

    def _matrices(self) -> list[Matrix]:
        linear = [] if self.stream.linear is None else [self.stream.linear]
        return [m for each in self.stream.layers for m in (each.ih, each.hh)] + linear

    def _widest(self) -> int:
        """Return the longest vector that a matrix multiplies."""
        return max(matrix.weight.size(1) for matrix in self._matrices())

    def _value(self, name: str, value: Any) -> str:
        """Return an initialiser; tensors become arrays, whose names it has."""
        if value is None:
            return "NULL"
        if isinstance(value, Mapping):
            if self.quantised and "weight" in value:
                whole, scale = quantise(value["weight"])
                value = {**value, "scale": scale, "weight": whole.to(torch.int8)}
            parts = [f".{key} = {self._value(f'{name}_{key}', v)}" for key, v in value.items()]
            return "{" + ", ".join(parts) + "}"
        if isinstance(value, int):
            return f"{value}"
        if not torch.as_tensor(value).float().isfinite().all():
            raise ValueError(f"the layer must be finite in float32, got other values for {name}")
        if not isinstance(value, Tensor):
            return _literal(value)
        short = value.dtype == torch.int8
        numbers = value.flatten().tolist() if short else value.float().flatten().tolist()
        texts = [f"{v}" if short else _literal(v) for v in numbers]
        kind, width, size = ("int8_t", 20, 1) if short else ("float", 8, 4)
        lines = [", ".join(texts[k : k + width]) for k in range(0, len(texts), width)]
        rows = "".join(f"    {line},\n" for line in lines)
        self.arrays.append(f"static const {kind} {name}[{len(texts)}] = {{\n{rows}}};")
        self.flash += size * len(texts)
        return name

    def _fill(self, title: str, **values: Any) -> str:
        """Return a piece with its names filled in."""
        values |= {"name": self.name, "NAME": self.name.upper()}

        def line(match: re.Match[str]) -> str:
            text = str(values[match[2]])
            return "".join(f"{match[1] * bool(each)}{each}\n" for each in text.split("\n") if text)

        text = re.sub(r"^( *)\$(\w+)\n", line, self.pieces[title] + "\n", flags=re.MULTILINE)
        return Template(text).substitute(values).strip("\n")


def _layer(layer: Layer) -> dict[str, Any]:
    """Return the constants of a layer by the names of the struct's members."""
    sites: dict[str, Any] = {}
    for name, site in layer.sites.items():
        if isinstance(site, Steps):
            sites[name] = {"scale": site.scale, "shift": site.shift, "steps": len(site.scale)}
        else:
            sites[name] = {"gamma": site.gamma, "beta": site.beta, "eps": site.norm.eps}
    return {"ih": _matrix(layer.ih), "hh": _matrix(layer.hh), **sites}


def _matrix(matrix: Matrix) -> dict[str, Any]:
    rows, columns = matrix.weight.shape
    return {"weight": matrix.weight, "bias": matrix.bias, "rows": rows, "columns": columns}


def _function(site: Rows) -> str:
    return "layer_norm" if isinstance(site.norm, LayerNorm) else "rms_norm"


def _literal(value: float) -> str:
    """Return a number of float32 in C: nine digits name it exactly."""
    text = f"{value:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _wrapped(lines: list[str]) -> Iterator[str]:
    yield "/*"
    for line in lines:
        # what would end the comment
        safe = line.replace("*/", "* /")
        yield from textwrap.wrap(
            safe, 96, initial_indent=" * ", subsequent_indent=" *   ", break_long_words=False
        ) or [" *"]
    yield " */"
