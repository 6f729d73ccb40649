"""Write checkpoints whole, and check every checkpoint that is read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
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
from rnnorm.experiments.files import BrokenFileError, check_size, unpack
from rnnorm.experiments.training.run_names import BEST, LAST, PREVIOUS
from rnnorm.experiments.writing import write_whole

# the comment of a checkpoint's zip archive: the digest of all bytes before it
_DIGEST = b"sha256:"
_COMMENT = len(_DIGEST) + 64
# most bytes of a checkpoint
_LIMIT = 1 << 34


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint under another name and renames the file when it is complete.

    Lightning writes into the system's temporary folder first, and copies the file instead of
    renaming it if the folder is on another file system. torch reads a zip archive without checking
    its checksums.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Path | None = None
    ) -> None:
        """Write a checkpoint with its digest, and replace ``path`` once all is written.

        Args:
            checkpoint: the contents.
            path: the checkpoint's file.
            storage_options: new name of the file that ``path`` named so far.

        Raises:
            OSError: if the disk is full or not writable; the previous checkpoint stays whole.
        """
        path = Path(path)
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        _seal(buffer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # the view ends with its block: a buffer that still has one cannot be closed
            with buffer.getbuffer() as view:
                write_whole(path, view, storage_options)
        except OSError as error:
            kept = f"; the checkpoint before it is whole at {path}" if path.is_file() else ""
            message = f"could not write a checkpoint ({error.strerror or error}){kept}"
            raise OSError(error.errno, message, str(path)) from error

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read and check a checkpoint with :func:`read_checkpoint`."""
        return read_checkpoint(path)


def _seal(archive: BytesIO) -> None:
    """Append the archive's SHA-256 as its zip comment, whose length the last two bytes hold."""
    archive.seek(-2, os.SEEK_END)
    archive.write(_COMMENT.to_bytes(2, "little"))
    digest = hashlib.sha256(archive.getvalue()).hexdigest()
    archive.write(_DIGEST + digest.encode())


def _check_sum(data: bytes) -> None:
    """Raise a ValueError if the bytes of a checkpoint do not match its checksum."""
    content, comment = memoryview(data)[:-_COMMENT], data[-_COMMENT:]
    if not comment.startswith(_DIGEST):
        # without a digest there are only the zip's checksums, which skip its directory
        with ZipFile(BytesIO(data)) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} is another one")
    elif hashlib.sha256(content).hexdigest().encode() != comment[len(_DIGEST) :]:
        raise ValueError("its checksum is another one")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint after checking its checksum, without running code in it.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is not a whole checkpoint; the message names whole ones beside it.
    """
    path = Path(path)
    try:
        return _read(path)
    except ValueError as error:
        whole = [f"{other} (step {step})" for other, step in _whole_beside(path)]
        instead = f". Whole beside it: {', '.join(whole)}" if whole else ""
        raise ValueError(f"{error}{instead}") from error


def _whole_beside(path: Path) -> Iterator[tuple[Path, int]]:
    """Yield the other whole checkpoints of a broken checkpoint's run, with their steps."""
    for other in (path.parent / name for name in (LAST, PREVIOUS, BEST)):
        if other != path:
            with contextlib.suppress(ValueError, OSError):
                yield other, _read(other)["global_step"]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        # one read, so that the loaded bytes are the checked ones
        data = unpack(path, "", _LIMIT)
        _check_sum(data)
        with ZipFile(BytesIO(data)) as archive:
            size = sum(each.file_size for each in archive.infolist())
        check_size(size, f"{path}, unpacked,", _LIMIT)
        state = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except BrokenFileError:
        raise
    except pickle.UnpicklingError as error:
        # torch's own message recommends weights_only=False, which would run code in the file
        reason = "it is broken, or it holds more than plain types and tensors, which may run code"
        raise ValueError(f"{path} is not a whole checkpoint: {reason}") from error
    except Exception as error:
        raise ValueError(f"{path} is not a whole checkpoint: {shorten(error)}") from error
    if not isinstance(state, dict):
        raise ValueError(
            f"{path} is not a checkpoint of a training: it is a {type(state).__name__}"
        )
    require(state, path, {"state_dict": dict, "epoch": int, "global_step": int})
    return state


def require(state: Mapping[str, Any], path: Path, fields: Mapping[str, type]) -> None:
    """Check that a checkpoint has the given fields, with values of the given types.

    Raises:
        ValueError: if a field is missing or of another type; the message names the field.
    """
    for name, kind in fields.items():
        if name not in state:
            raise ValueError(f"{path} is not a checkpoint of a training: it has no {name!r}")
        if not isinstance(state[name], kind):
            raise ValueError(
                f"{path} is not a checkpoint of a training: its {name!r} must be of type "
                f"{kind.__name__}, got {type(state[name]).__name__}"
            )


def newest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the newest whole checkpoint of a run, and say on stderr if newer ones are broken.

    Args:
        folder: holds ``last.ckpt``, and perhaps ``previous.ckpt`` and ``best.ckpt``.

    Returns:
        The checkpoint's file and its contents.

    Raises:
        FileNotFoundError: if the folder holds no checkpoint.
        ValueError: if every checkpoint is broken.
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
    """Refuse a checkpoint without the states that a resumed training needs.

    Lightning would start whatever lacks its state from scratch.

    Raises:
        ValueError: if a state is missing; the message names the state.
    """
    fields = {"loops": dict, "callbacks": dict, "optimizer_states": list, "lr_schedulers": list}
    require(state, path, fields)
    for name in ("Clock", "KeepLastAndBest", "RandomState"):
        require(state["callbacks"], path, {name: dict})


def load_weights(model: nn.Module, state: dict[str, Any], path: str | Path) -> None:
    """Load a checkpoint's weights into a model.

    Args:
        model: the model.
        state: the contents of the checkpoint, as :func:`read_checkpoint` returns them.
        path: the checkpoint's file, for the message.

    Raises:
        ValueError: if the weights do not fit this model.
    """
    try:
        model.load_state_dict(state["state_dict"])
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not hold this model's weights: {shorten(error)}") from None


def data_state(state: dict[str, Any], data: LightningDataModule) -> dict[str, Any]:
    """Return the data module's state in a checkpoint, or an empty dict if there is none."""
    entries: dict[str, Any] = state.get(type(data).__qualname__, {})
    return entries


def check_same(
    state: dict[str, Any],
    model: LightningModule,
    datamodule: LightningDataModule,
    path: str | Path,
    free: Collection[str],
) -> None:
    """Refuse a checkpoint whose model or data had other arguments.

    Args:
        state: the contents of the checkpoint, as :func:`read_checkpoint` returns them.
        model: the model that the checkpoint should be of.
        datamodule: the data that the checkpoint should be of.
        path: the checkpoint's file, for the message.
        free: arguments of the model or the data that may differ; ``"norm_options.horizon"`` is an
            entry of an argument.

    Raises:
        ValueError: if an argument differs, or the checkpoint's arguments are not a dict.
    """
    other = []
    for part, key, module in (
        ("model", "hyper_parameters", model),
        ("data", "datamodule_hyper_parameters", datamodule),
    ):
        trained, now = state.get(key, {}), dict(module.hparams)
        if not isinstance(trained, dict):
            raise ValueError(f"{path} is not a checkpoint of a training: its {key!r} is not a dict")
        names = [n for n in trained if n in now and n not in free and not n.startswith("_")]
        other += [
            f"{part}.init_args.{n} was {trained[n]!r} and is {now[n]!r}"
            for n in names
            if _fixed(n, trained[n], free) != _fixed(n, now[n], free)
        ]
    if other:
        raise ValueError(f"{path} was trained with other settings: {'; '.join(other)}")


def _fixed(name: str, value: Any, free: Collection[str]) -> Any:
    """Return the value of an argument without the entries that may differ; None if none is left."""
    if not isinstance(value, dict):
        return value
    return {key: entry for key, entry in value.items() if f"{name}.{key}" not in free} or None
