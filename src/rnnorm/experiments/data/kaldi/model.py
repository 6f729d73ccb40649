"""Reader of the transition model of a Kaldi ``final.mdl``: the state of each transition id."""

from __future__ import annotations

import codecs
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rnnorm.experiments.files import check_size, unpack

# for each phone and each of its states, the target states of its transitions
Topology = dict[int, list[list[int]]]
# each tuple repeats the transitions of its state: a small file could ask for any number
_MOST_TRANSITIONS = 1 << 24


def read_pdf_ids(path: str | Path) -> NDArray[np.int32]:
    """Read the tied state (pdf id) of every transition id, as Kaldi's ``ali-to-pdf`` uses it.

    Args:
        path: the model, binary or text; the file is not read beyond its transition model.

    Returns:
        ``(N + 1,)``: the state of transition id i at index i. Ids start from 1; index 0 has -1.

    Raises:
        ValueError: if the file is not a model, is truncated or too large, or has a state beyond the
            number that its tuples allow; the message names the file and the byte.
        FileNotFoundError: if there is no such file.
    """
    path = Path(path)
    # editors may add a byte order mark
    data = unpack(path).removeprefix(codecs.BOM_UTF8)
    reader = _Binary(data, path) if data[:2] == b"\0B" else _Text(data, path)
    reader.expect("<TransitionModel>", "<Topology>")
    topology, loops_apart = reader.topology()
    kind = "Tuples>" if loops_apart else "Triples>"
    reader.expect(f"<{kind}")
    pdfs = [-1]
    count = reader.integer()
    # states are numbered from 0 without gaps
    num_states = count * (2 if loops_apart else 1)
    for _ in range(count):
        phone, state, forward = reader.integer(), reader.integer(), reader.integer()
        loop = reader.integer() if loops_apart else forward
        if not (0 <= forward < num_states and 0 <= loop < num_states):
            raise reader.error(f"{count} tuples have no state {forward} or {loop}")
        try:
            targets = topology[phone][state]
        except (KeyError, IndexError):
            raise reader.error(f"phone {phone} has no state {state}") from None
        pdfs += [loop if target == state else forward for target in targets]
        check_size(len(pdfs), path, _MOST_TRANSITIONS, "transitions")
    reader.expect(f"</{kind}")
    return np.array(pdfs, dtype=np.int32)


class _Reader:
    """Base of the readers of binary and text models."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def error(self, what: str) -> ValueError:
        """Return an error that names the file and the current byte."""
        return ValueError(f"{self.path} is not a Kaldi model: {what}, at byte {self.at}")

    def truncated(self) -> ValueError:
        """Return the error of a file that ends within its transition model."""
        return ValueError(
            f"{self.path} is truncated: it ends at byte {len(self.data)}, inside its transition "
            "model"
        )

    def token(self) -> str:
        """Read the next word."""
        while self.data[self.at : self.at + 1].isspace():
            self.at += 1
        start = self.at
        while self.at < len(self.data) and not self.data[self.at : self.at + 1].isspace():
            self.at += 1
        if self.at == len(self.data):
            raise self.truncated()
        self.at += 1
        return self.data[start : self.at - 1].decode(errors="replace")

    def expect(self, *tokens: str) -> None:
        """Read words that must be these tokens."""
        for token in tokens:
            start = self.at
            if (found := self.token()) != token:
                self.at = start
                raise self.error(f"{found[:20]!r} stands where {token} should")


class _Binary(_Reader):
    """Reader of a binary model, in which a byte with its size precedes each number."""

    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(data, path)
        self.at = 2

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise self.truncated()
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self) -> int:
        if self.take(1) != b"\4":
            raise self.error("no 32-bit number stands here")
        return int(struct.unpack("<i", self.take(4))[0])

    def integers(self) -> list[int]:
        count = max(0, self.integer())
        return list(struct.unpack(f"<{count}i", self.take(4 * count)))

    def topology(self) -> tuple[Topology, bool]:
        """Read the states of each phone, and whether self-loops have pdf ids of their own."""
        phones, entry_of = self.integers(), self.integers()
        count = self.integer()
        # -1 announces the newer form
        if loops_apart := count == -1:
            count = self.integer()
        entries = [self.entry(loops_apart) for _ in range(count)]
        self.expect("</Topology>")
        try:
            return {phone: entries[entry_of[phone]] for phone in phones}, loops_apart
        except IndexError:
            raise self.error("a phone has no topology") from None

    def entry(self, loops_apart: bool) -> list[list[int]]:
        states: list[list[int]] = []
        for _ in range(self.integer()):
            # skip the state's classes of pdf ids, which the tuples hold resolved
            self.take(10 if loops_apart else 5)
            states.append([])
            for _ in range(self.integer()):
                states[-1].append(self.integer())
                # skip the transition's probability
                self.take(5)
        return states


class _Text(_Reader):
    """Reader of a text model."""

    def integer(self) -> int:
        return self.number(self.token())

    def number(self, word: str) -> int:
        try:
            return int(word)
        except ValueError:
            raise self.error(f"{word[:20]!r} stands where a number should") from None

    def topology(self) -> tuple[Topology, bool]:
        """Read the states of each phone, and whether self-loops have pdf ids of their own."""
        topology: Topology = {}
        loops_apart = False
        while (word := self.token()) != "</Topology>":
            if word != "<TopologyEntry>":
                raise self.error(f"{word[:20]!r} stands where <TopologyEntry> should")
            self.expect("<ForPhones>")
            phones: list[int] = []
            while (word := self.token()) != "</ForPhones>":
                phones.append(self.number(word))
            states: list[list[int]] = []
            while (word := self.token()) != "</TopologyEntry>":
                if word == "<State>":
                    states.append([])
                elif not states:
                    raise self.error(f"{word[:20]!r} stands where <State> should")
                elif word == "<Transition>":
                    states[-1].append(self.integer())
                loops_apart |= word == "<SelfLoopPdfClass>"
            topology |= dict.fromkeys(phones, states)
        return topology, loops_apart
