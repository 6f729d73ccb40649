"""Write a trained model as a file that runs elsewhere, for ``rnnorm export``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchmetrics import Metric

import rnnorm
from rnnorm.experiments.console import check_choice
from rnnorm.experiments.data.loaded_data import LoadedData
from rnnorm.experiments.models.recurrent_model import RecurrentModel
from rnnorm.experiments.trained.load import load_trained
from rnnorm.experiments.training.checkpoint import data_state
from rnnorm.experiments.writing import check_output_file, write_whole

Format = Literal["onnx", "pt2", "folded"]
# sizes of the example input; the exported model accepts others
_STEPS, _ROWS = 5, 3


def export(
    run: str | Path,
    out: str | Path,
    format: Format = "onnx",
    checkpoint: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a trained model as one file, and beside it a JSON file of how to use it.

    Args:
        run: run folder of the training, or a recipe if a checkpoint is given.
        out: file of the model; a second file, with ``.json`` after its name, says how to use it.
        format: ``"onnx"`` for onnxruntime, ``"pt2"`` for ``torch.export.load``, or ``"folded"`` for
            ``torch.load``, as plain torch.nn layers. The first two hold a model that reads
            sequences of any length, the third a ``torch.nn.ModuleDict``.
        checkpoint: a ``.ckpt`` file to use instead of the run's best checkpoint.
        data_dir: folder with the data set's files; it is read only where the inputs are scaled by
            the data.
        scale: scale that a checkpoint outside its run folder was trained at; ``"paper"`` by
            default.
        overrides: options of LightningCLI.

    Returns:
        What the JSON file holds.

    Raises:
        ValueError: if the format or the task is not covered, the model cannot be folded, the
            inputs are scaled by data that are not given, or ``out`` is a device or a pipe.
        FileNotFoundError: if the checkpoint or the folder of ``out`` is missing.
        IsADirectoryError: if ``out`` or the JSON file is a folder.
        RuntimeError: as :func:`rnnorm.export.onnx`.
    """
    out = Path(out)
    check_choice(Format, format=format)
    check_output_file(out)
    check_output_file(beside := out.with_name(f"{out.name}.json"))
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {out.parent} to write {out.name} into")
    trained = load_trained(run, checkpoint, data_dir=data_dir, scale=scale, overrides=overrides)
    model, data = trained.experiment.model.eval(), trained.experiment.datamodule
    inputs = None
    if isinstance(model, RecurrentModel):
        inputs = model.export_inputs(_STEPS, _ROWS)
    if inputs is None:
        raise ValueError(
            f"the model must be one of images, series, frames or texts, got {type(model).__name__}"
        )
    assert isinstance(data, LoadedData)
    about: dict[str, Any] = {
        "rnnorm": rnnorm.__version__,
        "format": format,
        "task": type(model).__name__,
        "model": {name: value for name, value in model.hparams.items() if value is not None},
        "preprocessing": data.preprocessing(data_state(trained.state, data)),
    }
    # metrics serve training alone
    for name, child in list(model.named_children()):
        if isinstance(child, Metric):
            delattr(model, name)
    about |= _write(model, inputs, out, format)
    text = json.dumps(about, indent=2, ensure_ascii=False)
    write_whole(beside, f"{text}\n".encode())
    return about


def _write(
    model: LightningModule, inputs: dict[str, Any], out: Path, format: Format
) -> dict[str, Any]:
    """Write the model's file and return what the JSON file says about its contents."""
    stream = BytesIO()
    if format == "folded":
        layers = dict(rnnorm.fold(model).named_children())
        torch.save(nn.ModuleDict(layers).requires_grad_(False), stream)
        write_whole(out, stream.getvalue())
        return {"layers": list(layers)}
    if format == "onnx":
        sizes = rnnorm.export.onnx(model, (), out, kwargs=inputs)
        return {"inputs": sizes, **_streams(model, inputs)}
    sizes = {name: rnnorm.export.every_size(value) for name, value in inputs.items()}
    program = torch.export.export(rnnorm.freeze(model), (), inputs, dynamic_shapes=sizes)
    torch.export.save(program, stream)
    write_whole(out, stream.getvalue())
    fused = any("rnnorm" in str(node.target) for node in program.graph.nodes)
    return {"inputs": list(inputs), "imports": ["rnnorm"] * fused, **_streams(model, inputs)}


def _streams(model: LightningModule, inputs: dict[str, Any]) -> dict[str, Any]:
    """Describe how to feed a stream, with its learned first state; empty without a stream."""
    if "state" not in inputs:
        return {}
    rnn: Any = model.rnn
    about: dict[str, Any] = {
        "stream": "state: that of the call before, at first zeros, or first_state for every row; "
        "step: frames that each row has had before"
    }
    if rnn.learn_initial_state:
        state = inputs["state"] if isinstance(inputs["state"], tuple) else (inputs["state"],)
        about["first_state"] = [
            getattr(rnn, f"{name}_0").view(len(like), *like.shape[2:]).tolist()
            for name, like in zip(rnn.cell.states, state, strict=True)
        ]
    return about
