"""Whether a checkpoint is one that this model, data and training can go on from."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from rnnorm.experiments.training.checkpoint_file import require
from rnnorm.experiments.training.one_line import one_line


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
        raise ValueError(f"{path} does not hold this model's weights: {one_line(error)}") from None


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
