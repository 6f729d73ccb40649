"""Read the outcome of a training from its run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rnnorm.experiments.recipe.label import changes, whole_changes
from rnnorm.experiments.recipe.recipe import read_config
from rnnorm.experiments.trained.measurement import Measurement, Statistics, read_measurements
from rnnorm.experiments.training.checkpoint import newest_checkpoint
from rnnorm.experiments.training.folder import read_about
from rnnorm.experiments.training.metrics import DIVERGED, read_metrics
from rnnorm.experiments.training.run_names import BEST, LAST
from rnnorm.experiments.training.score import SAMPLING_ERROR


@dataclass(frozen=True)
class Outcome:
    """A training, finished or not, beside the paper's number.

    Attributes:
        recipe: name of the recipe.
        scale: ``"paper"`` or ``"small"``.
        title: title of the row in a table.
        paper: paper that the recipe is from.
        metric: metric of the paper's number, such as ``test accuracy, %``.
        number: the paper's number, or None.
        small: what ``--scale small`` reduces, or None.
        epochs: whole epochs so far.
        steps: training steps so far.
        seconds: time in training steps, whatever else the machine did meanwhile.
        best: best validation score, as it is logged, or None without validation.
        best_epoch: epoch of the best score, counted from 1.
        tests: measurements by ``rnnorm test``, of any checkpoint, oldest first.
        versions: of rnnorm and torch.
        seed: of weights and data, or None for a record that does not say.
        changes: differences from the recipe, but for the scale.
        overrides: the same differences, by the whole names of the options.
        best_step: the step of the best validation score, or None for a record that does not say.
        minutes: the budget in minutes of training steps that it had in ``rnnorm compare``, if any.
        places: where its parts ran, each with ``processor``, ``threads``, ``commit`` and
            ``kernels``.
    """

    recipe: str
    scale: str
    title: str
    paper: str
    metric: str
    number: float | None
    small: str | None
    epochs: int
    steps: int
    seconds: float
    best: float | None
    best_epoch: int
    tests: tuple[Measurement, ...]
    versions: dict[str, str]
    seed: int | None = None
    changes: tuple[str, ...] = ()
    minutes: float | None = None
    places: tuple[dict[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    best_step: int | None = None

    @property
    def label(self) -> str:
        """Return the recipe's name, followed by its changes."""
        return ", ".join([self.recipe, *self.changes])

    @property
    def papers_number(self) -> float | None:
        """Return the paper's number, None for a smaller or changed training, which it is not of."""
        return None if self.scale == "small" or self.changes else self.number

    def tested(
        self, statistics: Statistics | None = "population", length: int | None = None
    ) -> dict[str, float]:
        """Return the test metrics of the best epoch, measured on the recipe's own data.

        Without a validation they are those of the last step.

        Args:
            statistics: the statistics of the measurement; a model without batch statistics has only
                ``"population"``.
            length: steps of each test window; None for the recipe's own test set.

        Returns:
            The latest metrics by name; empty if none were measured.
        """
        found: dict[str, float] = {}
        for test in self.tests:
            if self.best is None:
                same = (test.checkpoint, test.step) == (LAST, self.steps)
            else:
                same = (test.checkpoint, test.epoch) == (BEST, self.best_epoch) and (
                    None in (test.step, self.best_step) or test.step == self.best_step
                )
            kind = (test.statistics or "population", test.length)
            if same and kind == (statistics, length) and not test.overrides and not test.estimated:
                found = test.metrics
        return found

    def ours(self, statistics: Statistics = "population") -> float | None:
        """Return our validation or test score, in the unit of the paper's number.

        Args:
            statistics: the statistics of the measurement; validation has only ``"population"``.

        Returns:
            The score, or None if it was not measured.
        """
        if self.metric.startswith("validation"):
            value = self.best if statistics == "population" else None
        else:
            value = score_in(self.tested(statistics))
        return self.in_papers_unit(value)

    @property
    def sampling_error(self) -> float | None:
        """Return the standard error of our test score in the paper's unit, or None."""
        if self.metric.startswith("validation"):
            return None
        return self.in_papers_unit(self.tested("population").get(SAMPLING_ERROR))

    def in_papers_unit(self, value: float | None) -> float | None:
        """Return a score in per cent if the paper's number is, else unchanged."""
        return 100 * value if value is not None and self.metric.endswith("%") else value


def score_in(metrics: dict[str, float]) -> float | None:
    """Return the first test metric other than the loss and sampling error, else the loss."""
    beside = ("test/loss", SAMPLING_ERROR)
    found = [value for name, value in metrics.items() if name not in beside]
    return found[0] if found else metrics.get("test/loss")


def read_outcome(folder: str | Path) -> Outcome:
    """Read the outcome of a run folder from its newest checkpoint.

    Raises:
        FileNotFoundError: if there is no run, or the run has no checkpoint yet.
        ValueError: if a file of the run is broken.
    """
    folder = Path(folder)
    run = read_about(folder)
    last, state = newest_checkpoint(folder / "checkpoints")
    try:
        clock, kept = (state["callbacks"][name] for name in ("Clock", "KeepLastAndBest"))
        progress = {
            "epochs": state["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"],
            "steps": clock["steps"],
            "seconds": clock["seconds"],
            "best": kept["best"],
            "best_epoch": kept["best_epoch"],
            # older checkpoints lack it
            "best_step": kept.get("best_step"),
            # a training may lack either callback
            "minutes": state["callbacks"].get("StopAfterSeconds", {}).get("minutes"),
            "places": tuple(state["callbacks"].get("Places", {}).get("places", [])),
        }
    except (AttributeError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{last} is not a checkpoint of rnnorm fit: {reason}") from None
    return _outcome(folder, run, progress)


def read_unsaved(folder: str | Path) -> Outcome:
    """Read a run folder that has no checkpoint, because training has just begun or diverged.

    Raises:
        FileNotFoundError: if there is no run.
        ValueError: if a file of the run is broken.
    """
    folder = Path(folder)
    run = read_about(folder)
    points = [
        # a line's step counts from 0, but the line of a divergence counts from 1
        (point.step + (name != DIVERGED), point.seconds)
        for name, found in read_metrics(folder / "metrics.csv").items()
        for point in found
    ]
    steps, seconds = (max(values) for values in zip((0, 0.0), *points, strict=True))
    # no checkpoint means no whole epoch
    return _outcome(
        folder,
        run,
        {"epochs": 0, "steps": steps, "seconds": seconds, "best": None, "best_epoch": 0},
    )


def _outcome(folder: Path, run: dict[str, Any], progress: dict[str, Any]) -> Outcome:
    """Build the outcome from the run's files and its progress."""
    about, given, start = run["about"], run.get("overrides", ()), run.get("start")
    return Outcome(
        recipe=run["recipe"],
        scale=run["scale"],
        title=about.get("title", run["recipe"]),
        paper=about.get("paper", ""),
        metric=about.get("metric", ""),
        number=about.get("number"),
        small=about.get("small"),
        tests=tuple(read_measurements(folder)),
        versions={name: run[name] for name in ("rnnorm", "torch") if name in run},
        seed=read_config(folder / "config.yaml").get("seed_everything"),
        changes=changes(given, start=start),
        overrides=whole_changes(given, start),
        **progress,
    )
