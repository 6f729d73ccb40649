"""One page about runs: what ``rnnorm report`` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rnnorm.experiments.comparing.entry import Entry, from_folder, named_apart
from rnnorm.experiments.measuring.curve import read_curve
from rnnorm.experiments.measuring.trained_run import TrainedRun, read_trained_run
from rnnorm.experiments.reporting.figures import (
    Picture,
    curve_pictures,
    example_pictures,
    gradient_pictures,
    length_pictures,
    saturation_pictures,
    spectral_pictures,
    statistics_pictures,
)
from rnnorm.experiments.training.checkpoints import write_whole
from rnnorm.experiments.training.words import runs_in


def report(
    runs: Sequence[str | Path],
    out: str | Path = "runs/report.html",
    *,
    data_dir: str | Path | None = None,
) -> Path:
    """Write a page about run folders that needs nothing but itself.

    Learning curves, a table beside the papers' numbers, and the figures of
    :mod:`rnnorm.diagnostics`. What needs data that are not there is left out, and the page says so.

    Args:
        runs: run folders, and folders of them that ``compare`` wrote; nothing in them is written.
        out: the page.
        data_dir: where the data sets' files are, if not where they were in the training.

    Returns:
        The page.

    Raises:
        FileNotFoundError: a folder holds no run, or no checkpoint yet.
        ValueError: a file is broken or of another version, or a run is named twice.
    """
    folders = [folder for run in runs for folder in runs_in(run)]
    entries = named_apart([from_folder(folder) for folder in folders])
    several = len({e.seed for e in entries}) > 1
    trained = []
    for entry in entries:
        name = f"{entry.model}, seed {entry.seed}" if several else entry.model
        trained.append(read_trained_run(entry.folder, name, data_dir))
    page = _page(trained, _sections(entries, trained))
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page.encode())
    return out


def _sections(
    entries: Sequence[Entry], runs: Sequence[TrainedRun]
) -> list[tuple[str, list[Picture]]]:
    curves = []
    for score in dict.fromkeys(entry.score for entry in entries):
        own = [e for e in entries if e.score == score]
        curves += curve_pictures([read_curve(e.folder, score, e.model, e.seed) for e in own], score)
    return [
        ("Learning curves", curves),
        ("Statistics over time", [p for run in runs for p in statistics_pictures(run)]),
        ("Gradient flow", [*gradient_pictures(runs), *saturation_pictures(runs)]),
        ("Spectral norms", [p for run in runs for p in spectral_pictures(run)]),
        ("Length", [p for run in runs for p in length_pictures(run)]),
        ("Examples", [p for run in runs for p in example_pictures(run)]),
    ]


def _page(runs: Sequence[TrainedRun], sections: Sequence[tuple[str, Sequence[Picture]]]) -> str:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    return templates.get_template("report.html").render(
        runs=runs,
        sections=[
            (name, [p._replace(svg=p.svg and Markup(p.svg)) for p in pictures])
            for name, pictures in sections
            if pictures
        ],
        versions=sorted({tuple(run.outcome.versions.items()) for run in runs}),
        number=lambda value: "–" if value is None else f"{value:.4g}",
    )
