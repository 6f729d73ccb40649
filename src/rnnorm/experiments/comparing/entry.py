"""A training that takes part in a comparison, and whether it may be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnorm.experiments.comparing.budget import Budget
from rnnorm.experiments.recipe.label import changes, changes_of, differences
from rnnorm.experiments.recipe.options import data_dir_option
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.training.build import Built
from rnnorm.experiments.training.folder import default_folder, rebuild
from rnnorm.experiments.training.score import Score, score_of


@dataclass(frozen=True)
class Entry:
    """A training that is compared.

    Attributes:
        model: what it is called; trainings that differ in the seed alone have the same name.
        seed: its seed.
        folder: its run folder.
        config: its whole configuration.
        score: its metric.
        recipe: what to train; None for a run folder that is taken as it is.
        scale: of that recipe.
        options: how it is trained besides, as LightningCLI has it.
        changes: what makes it another training than its recipe's.
    """

    model: str
    seed: int
    folder: Path
    config: dict[str, Any]
    score: Score
    recipe: str | None = None
    scale: str = "paper"
    options: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    @property
    def own_budget(self) -> dict[str, Any]:
        """What its configuration says about how long it takes."""
        return {name: self.config["trainer"][name] for name in ("max_epochs", "max_steps")}


def from_folder(folder: Path) -> Entry:
    """A training that is there.

    Raises:
        ValueError: if it is broken or of another version.
    """
    built, about = rebuild(folder)
    config = built.as_dict()
    return Entry(
        about["recipe"],
        config["seed_everything"],
        folder,
        config,
        score_of(built.model),
        changes=changes_of(about),
    )


def variations(vary: str | None) -> list[list[str]]:
    """The options that stand for each value of a varied one; one empty list without any.

    Args:
        vary: such as ``"model.norm=batch,layer,none"``.

    Raises:
        ValueError: if it is not of that form, or has a value twice.
    """
    if vary is None:
        return [[]]
    name, _, listed = vary.lstrip("-").partition("=")
    values = ["null" if value == "none" else value for value in listed.split(",")]
    if not name or not all(values) or len(set(values)) < len(values):
        raise ValueError(f"vary must be OPTION=VALUE,VALUE,... with different values, got {vary!r}")
    return [[f"--{name}={value}"] for value in values]


def from_recipe(
    recipe: str,
    name: str,
    seeds: int,
    scale: str,
    options: Sequence[str],
    out: Path,
    apart: Sequence[str] = (),
    data_dir: str | Path | None = None,
) -> Iterator[Entry]:
    """Trainings of a recipe with seeds from 1 on, in run folders under ``out``.

    Args:
        recipe: its name.
        name: what to call it.
        seeds: how many.
        scale: ``"paper"`` or ``"small"``.
        options: options of LightningCLI.
        out: where the run folders go.
        apart: those of the options that the folders' names tell.
        data_dir: where the data set's files are.

    Raises:
        ValueError: if there is no such recipe or scale.
        OverrideError: if an option is none that the recipe knows.
    """
    chosen = read_recipe(recipe, scale)
    # a file of one's own is named as in the run folder
    built = Built(chosen.config, [*data_dir_option(data_dir), *options])
    config, score = built.as_dict(), score_of(built.model)
    for seed in range(1, seeds + 1):
        told = "-".join([default_folder(chosen).name, *changes(apart), f"seed{seed}"])
        yield Entry(
            name,
            seed,
            # a value may be a path
            out / told.replace("/", "-"),
            config,
            score,
            recipe,
            scale,
            tuple(options),
            changes(options, scale),
        )


def named_apart(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with what was changed of the recipe in the name, or else the folder.

    What was changed of all alike is left out where there are several models.

    Raises:
        ValueError: if two are of the same model and seed.
    """
    alike = set(entries[0].changes).intersection(*(e.changes for e in entries))
    if len({(e.model, e.changes) for e in entries}) == 1:
        alike = set()
    entries = [
        replace(e, model=", ".join([e.model, *(c for c in e.changes if c not in alike)]))
        for e in entries
    ]
    models: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        known = models.setdefault(entry.model, [])
        if training_of(entry.config) not in known:
            known.append(training_of(entry.config))
    apart = [
        replace(e, model=f"{e.model} ({e.folder})") if len(models[e.model]) > 1 else e
        for e in entries
    ]
    seen = set()
    for entry in apart:
        if (entry.model, entry.seed) in seen:
            raise ValueError(f"{entry.model} with seed {entry.seed} is named twice")
        seen.add((entry.model, entry.seed))
    return apart


def training_of(config: dict[str, Any]) -> dict[str, Any]:
    """What makes a training another one, besides its seed and how long it takes."""
    parts = {name: config.get(name) for name in ("model", "optimizer", "lr_scheduler")}
    trainer = {k: v for k, v in config["trainer"].items() if k not in ("max_epochs", "max_steps")}
    return {**data_of(config), **parts, "trainer": trainer}


def refuse_incomparable(entries: Sequence[Entry], budget: Budget) -> None:
    """Refuse entries whose data, metric, seeds or budget differ.

    Raises:
        ValueError: if they do, naming what, or there is only one model.
    """
    of_model: dict[str, list[Entry]] = {}
    for entry in entries:
        of_model.setdefault(entry.model, []).append(entry)
    if len(of_model) < 2:
        raise ValueError("compare needs at least two models: name recipes or run folders")
    own = budget == Budget() and [e.own_budget for e in entries if e.recipe is not None]
    settings = {}
    for model, (entry, *others) in of_model.items():
        settings[model] = {
            **data_of(entry.config),
            "metric": entry.score.name,
            "seeds": sorted(e.seed for e in (entry, *others)),
        }
        if own:
            # without a budget for all, the recipes' own must be the same; folders have no say
            settings[model]["budget"] = own[0] if entry.recipe is None else entry.own_budget
    refuse_differences(settings)


# where the files are changes no number; a seed is compared with the other model's of the same seed
_FREE = {"data_dir", "seed"}
_DATA_OF_TRAINER = (
    "accumulate_grad_batches",
    "fast_dev_run",
    "limit_train_batches",
    "limit_val_batches",
)


def data_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says about the data and their order."""
    arguments = config["data"].get("init_args") or {}
    trainer = config.get("trainer") or {}
    # how many rows are evaluated at once changes no number unless a text is cut into so many, or
    # not all minibatches are taken
    some = trainer.get("limit_val_batches")
    cut = arguments.get("windows") == "carried" or isinstance(some, int) or some not in (None, 1.0)
    free = _FREE if cut else _FREE | {"eval_batch_size"}
    return {
        "data": {
            "class_path": config["data"]["class_path"],
            "init_args": {k: v for k, v in arguments.items() if k not in free},
        },
        "trainer": {name: trainer.get(name) for name in _DATA_OF_TRAINER},
    }


def refuse_differences(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse trainings that cannot be compared.

    Args:
        settings: what must be the same, by the name of the training.

    Raises:
        ValueError: if naming what differs.
    """
    (first, setting), *others = settings.items()
    for name, other in others:
        if found := list(differences(setting, other)):
            raise ValueError(f"{first} and {name} cannot be compared: {'; '.join(found)}")
