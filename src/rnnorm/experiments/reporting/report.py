"""``rnnorm report``: one page about runs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from tqdm import tqdm

from rnnorm.experiments.comparing.entry import Entry, from_folder, named_apart
from rnnorm.experiments.pictures import Look, looks_of
from rnnorm.experiments.reporting.figures import (
    curve_pictures,
    example_pictures,
    gradient_pictures,
    influence_pictures,
    length_pictures,
    saturation_pictures,
    spectral_pictures,
    statistics_pictures,
)
from rnnorm.experiments.reporting.pictures import NAMES, SHADES, Picture, in_page
from rnnorm.experiments.reporting.table import columns, fold, headline
from rnnorm.experiments.reporting.trained_run import read_trained_run
from rnnorm.experiments.trained.curve import Curve, best_point, read_curve
from rnnorm.experiments.trained.outcome import Outcome, read_outcome, read_unsaved
from rnnorm.experiments.training.run_names import has_checkpoint, runs_in
from rnnorm.experiments.training.score import Score
from rnnorm.experiments.writing import check_output_file, write_whole

Item = TypeVar("Item")
Training = tuple[Entry, Outcome, Curve]


def report(
    runs: Sequence[str | Path],
    out: str | Path = "runs/report.html",
    *,
    data_dir: str | Path | None = None,
) -> Path:
    """Write a self-contained page about run folders.

    The page tells which model won and by how much, and shows a table beside the papers' numbers,
    learning curves, and the figures of :mod:`rnnorm.diagnostics`. Figures whose data or checkpoint
    are missing are left out, with the reason.

    Args:
        runs: run folders, and folders that ``compare`` wrote. They are only read.
        out: file of the page.
        data_dir: folder with the data sets' files; by default that of the training.

    Returns:
        The page.

    Raises:
        IsADirectoryError: if ``out`` is a folder.
        NotADirectoryError: if a folder above ``out`` is a file.
        ValueError: if a folder holds no run, a file is broken or of another version, or a run is
            named twice.
    """
    out = Path(out)
    check_output_file(out)
    folders = [folder for run in runs for folder in runs_in(run)]
    entries = named_apart([from_folder(folder) for folder in folders])
    trainings = [(e, _outcome(e), read_curve(e.folder, e.score, e.model, e.seed)) for e in entries]
    looks = looks_of(entry.model for entry in entries)
    page = _page(trainings, looks, _sections(trainings, looks, data_dir))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page.encode())
    return out


def _outcome(entry: Entry) -> Outcome:
    """Read the outcome of a run, which may have diverged before its first checkpoint."""
    outcome = (read_outcome if has_checkpoint(entry.folder) else read_unsaved)(entry.folder)
    if (best := best_point(entry.folder, entry.score)) is None:
        return outcome
    # value, epoch and step of the best score come from metrics.csv, which may be newer than the
    # last checkpoint of a training that was killed
    return replace(outcome, best=best.value, best_epoch=best.epoch + 1, best_step=best.step + 1)


def _sections(
    trainings: Sequence[Training], looks: Mapping[str, Look], data_dir: str | Path | None
) -> dict[str, list[Picture]]:
    # diagnostics are drawn from each model's first seed that has weights
    firsts = {e.model: e.folder for e, _, _ in reversed(trainings) if has_checkpoint(e.folder)}
    runs = [
        read_trained_run(firsts[model], model, data_dir)
        for model in _progress("reading", [model for model in looks if model in firsts])
    ]
    of_score: dict[Score, list[Curve]] = {}
    for entry, _, curve in trainings:
        of_score.setdefault(entry.score, []).append(curve)
    drawings: list[tuple[str, Callable[[], list[Picture]]]] = [
        *(("Learning curves", partial(curve_pictures, c, s, looks)) for s, c in of_score.items()),
        *(("Statistics over time", partial(statistics_pictures, r, looks[r.name])) for r in runs),
        *(
            ("Gradient flow", partial(pictures, runs, looks))
            for pictures in (gradient_pictures, influence_pictures, saturation_pictures)
            if runs
        ),
        *(("Spectral norms", partial(spectral_pictures, r, looks[r.name])) for r in runs),
        *(("Length", partial(length_pictures, r, looks[r.name])) for r in runs),
        *(("Examples", partial(example_pictures, r)) for r in runs),
    ]
    unsaved = [
        Picture(f"what shows the inside of {model}", "it has no checkpoint")
        for model in looks
        if model not in firsts
    ]
    sections: dict[str, list[Picture]] = {"Learning curves": [], "Statistics over time": unsaved}
    for section, draw in _progress("drawing", drawings):
        sections.setdefault(section, []).extend(draw())
    return sections


def _progress(what: str, items: Collection[Item]) -> Iterable[Item]:
    """Iterate over items, with a progress bar on a terminal."""
    bar: Iterable[Item] = tqdm(items, what, leave=False, disable=not sys.stderr.isatty())
    return bar


def _page(
    trainings: Sequence[Training],
    looks: Mapping[str, Look],
    sections: Mapping[str, Sequence[Picture]],
) -> str:
    entries = [entry for entry, _, _ in trainings]
    table = columns(trainings)
    rows_of: dict[str, list[int]] = {}
    for i, entry in enumerate(entries):
        rows_of.setdefault(entry.model, []).append(i)
    left_out: dict[str, list[str]] = {}
    number = itertools.count(1)
    shown: dict[str, list[tuple[Picture, Markup]]] = {}
    for section, pictures in sections.items():
        for p in pictures:
            if p.svg is None:
                left_out.setdefault(p.caption, []).append(p.title)
            else:
                svg = in_page(p.svg, f"figure-{next(number)}", p.title, p.description)
                shown.setdefault(section, []).append((p, Markup(svg)))
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    return templates.get_template("report.html").render(
        headline=headline(entries, [curve for _, _, curve in trainings]),
        shades=SHADES,
        headings=[column.heading for column in table],
        rows=[
            (
                model,
                NAMES[looks[model].colour],
                outcome,
                [fold([column.cells[i] for i in own]) for column in table],
                [
                    (entries[i].seed, [(c.heading, c.cells[i]) for c in table if c.cells[i].value])
                    for i in own
                ],
            )
            for model, own in rows_of.items()
            for _, outcome, _ in [trainings[own[0]]]
        ],
        untested=any(not o.tested() for _, o, _ in trainings),
        sections=shown,
        several=len(entries) > len({e.model for e in entries}),
        left_out=left_out,
        versions=sorted({tuple(o.versions.items()) for _, o, _ in trainings}),
    )
