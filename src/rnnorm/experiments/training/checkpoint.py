"""Checkpoint files that nothing turns into a wrong training, and what can go on from one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from rnnorm.experiments.console import shorten
from rnnorm.experiments.files import BrokenFileError, check_size, unpack, write_whole
from rnnorm.experiments.training.run_names import BEST, LAST, PREVIOUS

# what a checkpoint ends with, as the comment of its zip archive: the digest of all before it
_DIGEST = b"sha256:"
_COMMENT = len(_DIGEST) + 64
# bytes of a checkpoint
_LIMIT = 1 << 34


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint under another name and renames it when it is complete.

    Lightning's own way goes through the system's temporary folder, from where a file is copied,
    not renamed, if that is another file system; and torch reads a zip archive without a look at
    its checksums.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Path | None = None
    ) -> None:
        """Write it.

        Args:
            checkpoint: what it holds.
            path: its file.
            storage_options: what the file that it replaces is called from then on.

        Raises:
            OSError: the disk is full or not writable; the previous checkpoint stays whole.
        """
        path = Path(path)
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        _seal(buffer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, buffer.getbuffer(), storage_options)
        except OSError as error:
            kept = f"; the checkpoint before it is whole at {path}" if path.is_file() else ""
            message = f"could not write a checkpoint ({error.strerror or error}){kept}"
            raise OSError(error.errno, message, str(path)) from error

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read it, as :func:`read_checkpoint` does."""
        return read_checkpoint(path)


def _seal(archive: BytesIO) -> None:
    """Give a zip archive the digest as its comment, for which the last two bytes are the length."""
    archive.seek(-2, os.SEEK_END)
    archive.write(_COMMENT.to_bytes(2, "little"))
    digest = hashlib.sha256(archive.getvalue()).hexdigest()
    archive.write(_DIGEST + digest.encode())


def _check_sum(data: bytes) -> None:
    """Raise a ValueError if a byte of the archive is not what was written."""
    content, comment = memoryview(data)[:-_COMMENT], data[-_COMMENT:]
    if not comment.startswith(_DIGEST):
        # not written by this class: the archive's own checksums, which leave its directory out
        with ZipFile(BytesIO(data)) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} is another one")
    elif hashlib.sha256(content).hexdigest().encode() != comment[len(_DIGEST) :]:
        raise ValueError("its checksum is another one")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint without running any code in it, if every byte is the one written.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no whole checkpoint; the message names those beside it that are.
    """
    path = Path(path)
    try:
        return _read(path)
    except ValueError as error:
        whole = [f"{other} (step {step})" for other, step in _whole_beside(path)]
        instead = f". Whole beside it: {', '.join(whole)}" if whole else ""
        raise ValueError(f"{error}{instead}") from error


def _whole_beside(path: Path) -> Iterator[tuple[Path, int]]:
    """The other checkpoints of a broken one's run, with their steps."""
    for other in (path.parent / name for name in (LAST, PREVIOUS, BEST)):
        if other != path:
            with contextlib.suppress(ValueError, OSError):
                yield other, _read(other)["global_step"]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        # read once, so that what is loaded is what was checked
        data = unpack(path, "", _LIMIT)
        _check_sum(data)
        with ZipFile(BytesIO(data)) as archive:
            size = sum(each.file_size for each in archive.infolist())
        check_size(size, f"{path}, unpacked,", _LIMIT)
        state = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except BrokenFileError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is no whole checkpoint: {shorten(error)}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} is no checkpoint of a training: it is a {type(state).__name__}")
    require(state, path, {"state_dict": dict, "epoch": int, "global_step": int})
    return state


def require(state: Mapping[str, Any], path: Path, fields: Mapping[str, type]) -> None:
    """Refuse what a checkpoint holds without a field, or with one of another type.

    Raises:
        ValueError: naming it.
    """
    for name, kind in fields.items():
        if name not in state:
            raise ValueError(f"{path} is no checkpoint of a training: it has no {name!r}")
        if not isinstance(state[name], kind):
            raise ValueError(
                f"{path} is no checkpoint of a training: its {name!r} must be of type "
                f"{kind.__name__}, got {type(state[name]).__name__}"
            )


def newest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The newest whole checkpoint of a run; a line on stderr says if it is not the last one.

    Args:
        folder: holds ``last.ckpt``, and perhaps the one before it and ``best.ckpt``.

    Returns:
        Its file, and what it holds.

    Raises:
        FileNotFoundError: there is none.
        ValueError: none of them is whole.
    """
    broken = []
    for path in (folder / LAST, folder / PREVIOUS, folder / BEST):
        if not path.exists():
            continue
        try:
            state = _read(path)
        except ValueError as error:
            broken.append(str(error))
            continue
        if broken:
            instead = f"taking {path} instead, of step {state['global_step']}"
            print(f"{'; '.join(broken)}: {instead}", file=sys.stderr, flush=True)
        return path, state
    if broken:
        raise ValueError("; ".join(broken))
    raise FileNotFoundError(f"there is no checkpoint {folder / LAST}")


def check_resumable(state: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint that lacks what a training goes on with: lightning begins it anew.

    Raises:
        ValueError: naming what it lacks.
    """
    fields = {"loops": dict, "callbacks": dict, "optimizer_states": list, "lr_schedulers": list}
    require(state, path, fields)
    for name in ("Clock", "KeepLastAndBest", "RandomState"):
        require(state["callbacks"], path, {name: dict})


def load_weights(model: nn.Module, state: dict[str, Any], path: str | Path) -> None:
    """Give a model the weights of a checkpoint.

    Args:
        model: the model.
        state: what :func:`read_checkpoint` returned.
        path: the checkpoint's file, for the message.

    Raises:
        ValueError: they are not those of this model.
    """
    try:
        model.load_state_dict(state["state_dict"])
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not hold this model's weights: {shorten(error)}") from None


def data_state(state: dict[str, Any], data: LightningDataModule) -> dict[str, Any]:
    """What a checkpoint holds of its data, empty where these keep nothing."""
    held: dict[str, Any] = state.get(type(data).__qualname__, {})
    return held


def check_same(
    state: dict[str, Any],
    model: LightningModule,
    datamodule: LightningDataModule,
    path: str | Path,
    free: Collection[str],
) -> None:
    """Refuse a checkpoint that was trained with another model or on other data.

    Args:
        state: what :func:`read_checkpoint` returned.
        model: the model that it should be of.
        datamodule: the data that it should be of.
        path: the checkpoint's file, for the message.
        free: arguments of either that may differ.

    Raises:
        ValueError: naming each argument that differs, or the checkpoint does not say.
    """
    other = []
    for part, key, module in (
        ("model", "hyper_parameters", model),
        ("data", "datamodule_hyper_parameters", datamodule),
    ):
        trained, now = state.get(key, {}), dict(module.hparams)
        if not isinstance(trained, dict):
            raise ValueError(f"{path} is no checkpoint of a training: its {key!r} is no dict")
        names = [n for n in trained if n in now and n not in free and not n.startswith("_")]
        other += [
            f"{part}.init_args.{n} was {trained[n]!r} and is {now[n]!r}"
            for n in names
            if trained[n] != now[n]
        ]
    if other:
        raise ValueError(f"{path} was trained otherwise: {'; '.join(other)}")
