"""Checkpoints that a full disk or a kill cannot break, and that resume exactly."""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from rnnorm.experiments.training.score import Score


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it is, at any time, either the old or the new one, never a part.

    Raises:
        OSError: the disk is full or not writable; the old file stays.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Let the new name of a file in it reach the disk too."""
    # not every system lets a folder be opened or flushed: the file itself is whole all the same
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint under another name and renames it when it is complete.

    Lightning's own way goes through the system's temporary folder, from where a file is copied,
    not renamed, if that is another file system.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write it.

        Raises:
            OSError: the disk is full or not writable; the previous checkpoint stays whole.
        """
        path = Path(path)
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, buffer.getbuffer())
        except OSError as error:
            kept = f"; the checkpoint before it is whole at {path}" if path.exists() else ""
            message = f"could not write a checkpoint ({error.strerror or error}){kept}"
            raise OSError(error.errno, message, str(path)) from error


class KeepLastAndBest(Checkpoint):
    """Keeps ``last.ckpt``, from which training resumes, and ``best.ckpt``.

    Args:
        folder: where they are.
        score: the metric of ``best.ckpt``, on the validation set.
        every_n_steps: save ``last.ckpt`` this often, and at the end of every epoch.

    Attributes:
        best: the best value so far.
        best_epoch: its epoch, counted from 1.
    """

    def __init__(self, folder: Path, score: Score, every_n_steps: int = 100) -> None:
        self.last_path = folder / "last.ckpt"
        self.best_path = folder / "best.ckpt"
        self.every_n_steps = every_n_steps
        self.score = score
        self.best: float | None = None
        self.best_epoch = 0

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save after every so many steps, and where training stops within an epoch."""
        due = trainer.should_stop or trainer.global_step % self.every_n_steps == 0
        # the last step of an epoch is left to the epoch's end, after validation
        if due and not trainer.is_last_batch:
            trainer.save_checkpoint(self.last_path)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after validation."""
        value = trainer.callback_metrics.get(f"val/{self.score.name}")
        better = value is not None and self._is_better(float(value))
        if value is not None and better:
            self.best, self.best_epoch = float(value), trainer.current_epoch + 1
            trainer.save_checkpoint(self.best_path)
        # an epoch that was cut short would count as a whole one when it is resumed
        if trainer.is_last_batch:
            trainer.save_checkpoint(self.last_path)

    def _is_better(self, value: float) -> bool:
        # nothing compares with nan: as the first value it would stay the best
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        return value > self.best if self.score.mode == "max" else value < self.best

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best, self.best_epoch = state_dict["best"], state_dict["best_epoch"]


class RandomState(Callback):
    """Keeps the states of the random numbers of Python, numpy and torch in the checkpoint."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The states, in plain types and tensors: ``torch.load`` needs no pickled code."""
        version, internal, gauss = random.getstate()
        # numpy's global state, which is what seed_everything seeds
        numpy: Any = np.random.get_state()  # noqa: NPY002
        name, keys, position, has_gauss, cached = numpy
        return {
            "python": [version, list(internal), gauss],
            "numpy": [name, keys.tolist(), position, has_gauss, cached],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep them until training starts: what comes before may draw numbers of its own."""
        self._loaded = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore them, in the last hook before the next step."""
        state, self._loaded = self._loaded, None
        if state is None:
            return
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy = (name, np.array(keys, np.uint32), position, has_gauss, cached)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint without running any code in it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no whole checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is no whole checkpoint: {error}") from error
    if not isinstance(state, dict) or "state_dict" not in state:
        raise ValueError(f"{path} is no checkpoint of a training: it has no 'state_dict'")
    return state


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
        free: arguments of the data that may differ.

    Raises:
        ValueError: naming each argument that differs.
    """
    other = []
    for part, key, module, allowed in (
        ("model", "hyper_parameters", model, ()),
        ("data", "datamodule_hyper_parameters", datamodule, free),
    ):
        trained, now = state.get(key, {}), dict(module.hparams)
        names = [n for n in trained if n in now and n not in allowed and not n.startswith("_")]
        other += [
            f"{part}.init_args.{n} was {trained[n]!r} and is {now[n]!r}"
            for n in names
            if trained[n] != now[n]
        ]
    if other:
        raise ValueError(f"{path} was trained otherwise: {'; '.join(other)}")
