"""Time a training step of each recipe on this machine (``rnnorm bench RECIPE ...``)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.optim import LBFGS, Optimizer

from rnnorm.experiments.bench.layers import VerificationError, on_backend, verify
from rnnorm.experiments.bench.record import Record, describe, machine, write
from rnnorm.experiments.bench.timing import check_seconds, interleave, torch_threads
from rnnorm.experiments.recipe.options import data_dir_option
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.training.build import Experiment, check_one_process
from rnnorm.experiments.training.ddp import refuse_trainer
from rnnorm.experiments.writing import refuse_file
from rnnorm.kernels import dispatch
from rnnorm.kernels.dispatch import use_backend

_MINIBATCHES = 8


def bench_recipes(
    recipes: Sequence[str],
    *,
    data_dir: str | Path | None = None,
    scale: str | None = None,
    threads: int | None = None,
    seconds: float = 20.0,
    on_torch: bool = False,
    backend: str | None = None,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> list[Record]:
    """Time a training step of each recipe as a ratio to the first, and print a table.

    A step is what :func:`rnnorm.experiments.training.fit.fit` does for an update: forward and
    backward with one minibatch, or as many as the trainer accumulates, clipping and the optimiser's
    step. The first minibatches of the training set are held in memory. Before the timing, the loss
    of the first minibatch and the outputs of the recurrent layers are compared with the reference
    kernel's, or for torch.nn's layers with ours, without autocast.

    Args:
        recipes: recipes whose training step is timed; ratios are to the first.
        data_dir: folder with the data set's files; MNIST is downloaded without it.
        scale: ``"small"`` ends within minutes on two cores, but its numbers are not the paper's;
            ``"paper"`` by default.
        threads: number of threads; torch's number by default.
        seconds: how long to measure, for each recipe.
        on_torch: time the first recipe on torch.nn's layers as well; ratios are to that. See
            :func:`rnnorm.experiments.bench.recipes.put_on_torch`.
        backend: kernel that all layers of the recipes run on; by default the one that each layer
            chooses. It is one of :func:`rnnorm.backends`.
        out: folder for a table (CSV) and a picture. Their names are ``bench-recipes.csv`` and
            ``bench-recipes.png``.
        overrides: options of LightningCLI for all of them.

    Returns:
        A record for each recipe.

    Raises:
        ValueError: if a recipe or ``backend`` is unknown, a recipe is named twice, ``threads``
            is not from 1 to this machine's cores, ``seconds`` is not positive and finite, or
            torch.nn lacks the layers of the first recipe, or the trainer has several devices or
            arguments with which no training can run.
        FileNotFoundError: if ``data_dir`` lacks files.
        NotADirectoryError: if ``out`` is a file.
        VerificationError: if a loss or an output differs from the reference's.
        RuntimeError: if a gradient is not finite, or ``backend`` does not cover a layer.
    """
    if out is not None:
        refuse_file(Path(out))
    check_seconds(seconds)
    if len(set(recipes)) < len(recipes):
        raise ValueError(f"each recipe must be named once, got {', '.join(recipes)}")
    options = [*data_dir_option(data_dir), *overrides]
    with torch_threads(threads), use_backend(backend) if backend else nullcontext():
        about = machine()
        print(describe(about), flush=True)
        given = (scale or "paper", options)
        steps = {f"{recipes[0]} on torch.nn": _step(recipes[0], *given, True)} if on_torch else {}
        steps |= {name: _step(name, *given) for name in recipes}
        kernels = {name: _kernels(step) for name, step in steps.items()}
        timings = interleave(steps, seconds * len(steps))
    width, (first, *_) = max(map(len, steps)), steps
    print(f"\n{'recipe':{width}}  ms per step  ratio to the first")
    records: list[Record] = []
    for name, timing in timings.items():
        print(f"{name:{width}}  {1000 * timing.seconds:11.1f}  {timing.ratio:18.2f}")
        record = {"recipe": name, "scale": scale or "paper", **timing._asdict()}
        record |= {"ratio_to": first, "backend": backend or "", "kernels": kernels[name]}
        records.append({**record, **about})
    if out is not None:
        files = write(
            records,
            out,
            "bench-recipes",
            row=lambda r: r["recipe"],
            series=lambda r: f"{r['scale']} scale",
            title=f"seconds of a training step as a ratio to {first}",
        )
        print("", *files, sep="\n")
    return records


def _step(
    name: str, scale: str, options: Sequence[str], on_torch: bool = False
) -> Callable[[], list[nn.Parameter]]:
    """Build a verified step that trains on the next minibatch and returns the parameters."""
    experiment = Experiment(read_recipe(name, scale).config, options)
    refuse_trainer(experiment)
    experiment.set_up("fit")
    ours = experiment.model
    if on_torch:
        ours = deepcopy(ours).eval()
        put_on_torch(experiment.model)
    given = experiment.config_init["trainer"]
    clips = {"value": "clip_val", "norm": "max_norm"}
    if (by := given["gradient_clip_algorithm"] or "norm") not in clips:
        raise ValueError(f"trainer.gradient_clip_algorithm must be value or norm, got {by!r}")
    names = ("accelerator", "devices", "num_nodes", "precision")
    fabric = Fabric(**{name: given[name] for name in names})
    check_one_process(fabric.world_size)
    loader = experiment.datamodule.train_dataloader()
    batches = [fabric.to_device(b) for b in itertools.islice(loader, _MINIBATCHES)]
    model, optimizer = fabric.setup(
        experiment.model, _optimizer(experiment.model.configure_optimizers())
    )
    parameters = list(experiment.model.parameters())
    batches = [_convert(batch, parameters[0].dtype) for batch in batches]
    if on_torch:
        # compared without dropout, whose draws differ on torch.nn
        fabric.setup_module(ours)
        both = (experiment.model.eval(), ours)
        verify(f"{name} on torch.nn", *(partial(_forward, each, batches[0]) for each in both))
    model.train()
    if not on_torch:
        _verify(name, ours, batches[0])
    numbers = itertools.cycle(range(len(batches)))
    together = given["accumulate_grad_batches"]

    def step() -> list[nn.Parameter]:
        """Train on the next minibatches."""
        chosen = list(itertools.islice(numbers, together))

        def closure() -> Tensor:
            """Compute the loss and its clipped gradients."""
            optimizer.zero_grad()
            for number in chosen:
                # fabric wraps forward in the precision's context, but no other method
                with fabric.autocast():
                    loss: Tensor = model.training_step(batches[number], number) / together
                fabric.backward(loss)
            if given["gradient_clip_val"]:
                fabric.clip_gradients(model, optimizer, **{clips[by]: given["gradient_clip_val"]})
            return loss

        # LBFGS calls the closure several times; a loss scaler accepts no closure
        if isinstance(optimizer.optimizer, LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        if fabric.device.type == "cuda":
            torch.cuda.synchronize(fabric.device)
        return parameters

    return step


def _kernels(step: Callable[[], object]) -> str:
    """Run a step and return the names of the kernels it used, ``torch.nn`` if none is ours."""
    before = Counter(dispatch.calls)
    step()
    return ", ".join(sorted(Counter(dispatch.calls) - before)) or "torch.nn"


def _verify(name: str, model: LightningModule, batch: Any) -> None:
    """Compare a step with the reference, again in float64 if they differ in float32."""
    step = partial(_forward, model, batch)
    try:
        verify(name, step, partial(on_backend, "reference", step))
    except VerificationError:
        # a recurrence may amplify rounding from step to step
        step = partial(_forward, deepcopy(model).double(), _convert(batch, torch.float64))
        verify(name, step, partial(on_backend, "reference", step))


def _forward(model: LightningModule, batch: Any) -> dict[str, Tensor]:
    """Return the loss of a minibatch and the outputs of the recurrent layers."""
    torch.manual_seed(0)
    found: dict[str, Tensor] = {}
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.RNNBase)]
    hooks = [m.register_forward_hook(partial(_keep, found, n)) for n, m in layers]
    with torch.no_grad():
        found["the loss"] = model.training_step(batch, 0)  # type: ignore[assignment]
    for hook in hooks:
        hook.remove()
    return found


def _convert(batch: Any, dtype: torch.dtype) -> Any:
    """Convert a minibatch to a dtype, except for its integers."""
    return apply_to_collection(batch, Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x)


def _keep(found: dict[str, Tensor], name: str, layer: nn.Module, x: Any, result: Any) -> None:
    """Store the output of a recurrent layer in ``found``."""
    output = result[0]
    found[name] = output.data if isinstance(output, PackedSequence) else output


def _optimizer(configured: Any) -> Optimizer:
    """Return the optimiser out of what LightningCLI configures, with or without a schedule."""
    if isinstance(configured, tuple):
        (optimizer,), _ = configured
    else:
        optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
    assert isinstance(optimizer, Optimizer)
    return optimizer


class _Packed(nn.RNNBase):
    """torch.nn's layer with the arguments of ours, which packs rows that have lengths."""

    def forward(
        self, input: Tensor, hx: Any = None, *, lengths: Any = None, step: int = 0
    ) -> tuple[Tensor, Any]:
        """Run the layer, ignoring ``step``."""
        if lengths is None:
            return super().forward(input, hx)  # type: ignore[no-any-return]
        packed = pack_padded_sequence(input, lengths.cpu(), enforce_sorted=False)
        output, state = super().forward(packed, hx)
        return pad_packed_sequence(output, total_length=len(input))[0], state


class _LSTM(_Packed, nn.LSTM): ...  # type: ignore[misc]


class _GRU(_Packed, nn.GRU): ...  # type: ignore[misc]


class _RNN(_Packed, nn.RNN): ...  # type: ignore[misc]


_KINDS = {"LSTM": _LSTM, "GRU": _GRU, "RNN": _RNN}


def put_on_torch(model: nn.Module) -> None:
    """Replace the recurrent layers of a model by those of torch.nn, with the same weights.

    Args:
        model: the model, whose layers read ``(T, B, ·)``.

    Raises:
        ValueError: if the model has no recurrent layer, or torch.nn lacks such a layer: one with a
            norm, noise, a learned initial state, recurrent dropout, or another cell.
    """
    found = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.RNNBase)
    ]
    if not found:
        raise ValueError("the model has no recurrent layer to put on torch.nn")
    for parent, name, layer in found:
        kind = _KINDS.get(type(layer).__name__)
        options = ("bidirectional", "dropout", "num_layers", "bias")
        given: dict[str, Any] = {each: getattr(layer, each) for each in options}
        if layer.mode.startswith("RNN_"):
            given["nonlinearity"] = layer.mode.removeprefix("RNN_").lower()
        plain = kind(layer.input_size, layer.hidden_size, **given) if kind else None
        # options that torch.nn lacks show in our repr
        if plain is None or repr(plain)[1:] != repr(layer):
            what = f"{type(layer).__name__}({layer.extra_repr()})"
            raise ValueError(f"torch.nn has no such layer as {name}: {what}")
        plain.load_state_dict(layer.state_dict())
        setattr(parent, name, plain.to(next(layer.parameters())))
