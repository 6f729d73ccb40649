"""A training that takes part in a comparison, and the checks that it is comparable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnorm.experiments.comparing.budget import Budget
from rnnorm.experiments.recipe.label import changes, changes_of, differences
from rnnorm.experiments.recipe.options import data_dir_option
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.training.build import FILES, Experiment
from rnnorm.experiments.training.folder import default_folder, rebuild
from rnnorm.experiments.training.score import Score, score_of


@dataclass(frozen=True)
class Entry:
    """A training that is compared.

    Attributes:
        model: name of the model, which trainings that differ in the seed alone share.
        seed: seed of the training.
        folder: run folder.
        config: complete configuration.
        score: metric.
        recipe: recipe to train; None for a run folder that is compared as it is.
        scale: scale of the recipe.
        options: further options of LightningCLI.
        changes: changes to the recipe, in words.
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
        """Return the most epochs and steps of the configuration."""
        return {name: self.config["trainer"][name] for name in ("max_epochs", "max_steps")}


def from_folder(folder: Path) -> Entry:
    """Make an entry of an existing run folder.

    Raises:
        ValueError: if the run folder is broken or of another version.
    """
    experiment, about = rebuild(folder)
    config = experiment.as_dict()
    return Entry(
        about["recipe"],
        config["seed_everything"],
        folder,
        config,
        score_of(experiment.model),
        changes=changes_of(about),
    )


def variations(vary: str | None) -> list[list[str]]:
    """Return the options for each value of a varied option; one empty list without such an option.

    Args:
        vary: the option and its values, such as ``"model.norm=batch,layer,none"``.

    Raises:
        ValueError: if ``vary`` has another form, or has a value twice.
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
    """Make entries of a recipe with seeds from 1 on, in run folders under ``out``.

    Args:
        recipe: name of the recipe.
        name: name of the model.
        seeds: number of seeds.
        scale: ``"paper"`` or ``"small"``.
        options: options of LightningCLI.
        out: parent of the run folders.
        apart: those options that are part of the folders' names.
        data_dir: folder of the data set's files.

    Raises:
        ValueError: if the recipe or the scale is unknown.
        OverrideError: if the recipe does not know an option.
    """
    chosen = read_recipe(recipe, scale)
    experiment = Experiment(chosen.config, [*data_dir_option(data_dir), *options])
    config, score = experiment.as_dict(), score_of(experiment.model)
    for seed in range(1, seeds + 1):
        folder = "-".join([default_folder(chosen).name, *changes(apart), f"seed{seed}"])
        yield Entry(
            name,
            seed,
            # an option's value may be a path
            out / folder.replace("/", "-"),
            config,
            score,
            recipe,
            scale,
            tuple(options),
            changes(options, scale),
        )


def named_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Add changes to the recipe, or else the folder, to the names of entries.

    Changes that all entries share are left out if there are several models.

    Raises:
        ValueError: if two entries have the same model and seed.
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
    seen: dict[tuple[str, int], Entry] = {}
    for entry in apart:
        first = seen.setdefault((entry.model, entry.seed), entry)
        if first is not entry:
            raise ValueError(
                f"{entry.model} with seed {entry.seed} is named twice: {first.folder} and "
                f"{entry.folder}"
            )
    return apart


def training_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that define a training, without its seed and its length."""
    parts = {name: config.get(name) for name in ("model", "optimizer", "lr_scheduler")}
    trainer = {k: v for k, v in config["trainer"].items() if k not in ("max_epochs", "max_steps")}
    return {**data_of(config), **parts, "trainer": trainer}


def refuse_incomparable(entries: Sequence[Entry], budget: Budget) -> None:
    """Refuse entries whose data, metric, seeds or budget differ.

    Raises:
        ValueError: if data, metric, seeds or budget differ, or there is only one model.
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
            # without a common budget the recipes' own must agree; folders are not checked
            settings[model]["budget"] = own[0] if entry.recipe is None else entry.own_budget
    refuse_differences(settings)


# settings that may differ: data_dir changes no number, and equal seeds are compared
_MAY_DIFFER = {"data_dir", "seed"}
_DATA_OF_TRAINER = (
    "accumulate_grad_batches",
    "fast_dev_run",
    "limit_train_batches",
    "limit_val_batches",
)


def data_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the data and their order."""
    arguments = config["data"].get("init_args") or {}
    trainer = config.get("trainer") or {}
    # eval_batch_size matters only if a text is cut into rows or some minibatches are left out
    some = trainer.get("limit_val_batches")
    cut = arguments.get("windows") == "carried" or isinstance(some, int) or some not in (None, 1.0)
    free = _MAY_DIFFER if cut else _MAY_DIFFER | {"eval_batch_size"}
    named = {k: _place(v) if k in FILES else v for k, v in arguments.items() if k not in free}
    return {
        "data": {
            "class_path": config["data"]["class_path"],
            "init_args": named,
        },
        "trainer": {name: trainer.get(name) for name in _DATA_OF_TRAINER},
    }


def _place(file: str | None) -> str | None:
    """Return a file of the data as named within its folder, as the folder changes no number."""
    # without data_dir a file is kept as an absolute path
    return Path(file).name if file and Path(file).is_absolute() else file


def refuse_differences(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse trainings that cannot be compared.

    Args:
        settings: settings that must agree, by name of the training.

    Raises:
        ValueError: if a setting differs; the message names it.
    """
    (first, setting), *others = settings.items()
    for name, other in others:
        if found := list(differences(setting, other)):
            raise ValueError(f"{first} and {name} cannot be compared: {'; '.join(found)}")
