"""Recording of runs in small files, from which the page of results is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from glob import escape
from pathlib import Path
from typing import Any

from rnnorm.experiments.data.text_file import as_text
from rnnorm.experiments.files import file_exists, unpack
from rnnorm.experiments.recipe.label import changes
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.searching.storage import is_storage
from rnnorm.experiments.searching.study import FILE as STUDY
from rnnorm.experiments.searching.study import Search, read_search, read_searches
from rnnorm.experiments.trained.curve import read_curve
from rnnorm.experiments.trained.outcome import Outcome, read_outcome
from rnnorm.experiments.training.folder import rebuild
from rnnorm.experiments.training.score import score_of
from rnnorm.experiments.writing import write_whole
from tools.results.page import page_of
from tools.results.picture import (
    curves_of,
    draw_scores,
    draw_validation,
    scores_of,
)
from tools.results.recorded import RECORDS, read_recorded
from tools.results.step_times import read_steps


def results(runs: Iterable[str | Path] = (), *, docs: str | Path = "docs") -> Path:
    """Record runs, and write the page and its pictures out of all records.

    Args:
        runs: run folders, folders of random searches, or storages of searches. A run's file
            ``sentences.txt``, if there is one, holds the text that its model wrote.
        docs: folder of ``results.md`` and of the folder ``results/`` of recorded files.

    Returns:
        The page.

    Raises:
        FileNotFoundError: if a folder is not a run, or ``results/tables.yaml`` is missing.
        ValueError: if a file is broken, a recorded run is in no table, or a run would replace one
            with other changes, or be another seed of it.
    """
    folder, page = Path(docs) / "results", Path(docs) / "results.md"
    before = {path: unpack(path, "") for path in folder.glob(RECORDS)}
    try:
        for run in map(str, runs):
            if is_storage(run):
                for found in read_searches(run):
                    _record_search(found, folder)
            else:
                record(run, folder)
        text = page_of(folder)
    except BaseException:
        # restore all records, since a lost one or one without a table would break every later page
        for path in set(folder.glob(RECORDS)) - before.keys():
            path.unlink()
        for path, content in before.items():
            if not file_exists(path) or unpack(path, "") != content:
                write_whole(path, content)
        raise
    write_whole(page, text.encode())
    steps = read_steps(folder)
    for table in read_recorded(folder)[1]:
        if scores_of(table):
            write_whole(folder / table.picture, draw_scores(table))
        if curves_of(table, steps):
            write_whole(folder / table.curves_picture, draw_validation(table, steps))
    return page


def record(run: str | Path, folder: Path) -> Path:
    """Record the outcome of a run in a small file, one for each recipe, changes and seed.

    The file replaces an earlier record, and a record of the recipe that does not tell its seed.

    Args:
        run: folder of the run, or of a random search.
        folder: folder of the records.

    Raises:
        FileNotFoundError: if there is no run.
        ValueError: if a file of the run is broken, or the run would replace a run with other
            changes, or be averaged with it.
    """
    if file_exists(Path(run) / STUDY):
        return _record_search(read_search(run), folder)
    outcome, written = read_outcome(run), Path(run) / "sentences.txt"
    lines = as_text(unpack(written, ""), written).splitlines() if file_exists(written) else []
    score = score_of(rebuild(Path(run))[0].model)
    curve = read_curve(Path(run), score, outcome.label, 0)
    content = {
        **asdict(outcome),
        "sentences": lines,
        "score": score.name,
        "curve": {
            "steps": curve.steps,
            "epochs": curve.epochs,
            **{
                name: [float(f"{v:.5g}") for v in getattr(curve, name)]
                for name in ("values", "trained")
            },
        },
    }
    apart = (*outcome.changes, *([] if outcome.seed is None else [f"seed{outcome.seed}"]))
    # the records of this seed, and of those that it will be averaged with
    model = _file(folder, outcome.recipe, outcome.scale, outcome.changes)
    for existing in (model, *folder.glob(f"{escape(model.stem)}-seed*.json")):
        _refuse_other(existing, outcome, run)
    path = _keep(folder, outcome.recipe, outcome.scale, content, apart)
    if apart == (f"seed{outcome.seed}",):
        model.unlink(missing_ok=True)
    return path


def _record_search(found: Search, folder: Path) -> Path:
    about = read_recipe(found.recipe, found.scale).about
    content = {
        "recipe": found.recipe,
        "small": about.get("small"),
        "overrides": found.overrides,
        "rows": found.rows(),
        "failures": found.failures(),
    }
    # other options make another search
    apart = changes(found.overrides)
    return _keep(folder, f"search-{found.recipe}", found.scale, content, apart)


def _refuse_other(path: Path, outcome: Outcome, run: str | Path) -> None:
    """Refuse to replace or average a run with other changes but the same file name.

    Changes are named by their last word, so two kinds of momentum share a name.
    """
    try:
        # older records do not tell their overrides
        before = json.loads(unpack(path, "")).get("overrides", list(outcome.overrides))
    except (FileNotFoundError, ValueError, AttributeError):
        # a missing or broken record may be replaced
        return
    if before != list(outcome.overrides):
        raise ValueError(
            f"{path} is of a run with {', '.join(before) or 'no overrides'}, and {run} has "
            f"{', '.join(outcome.overrides) or 'none'}: remove the file to record this one"
        )


def _file(folder: Path, name: str, scale: str, apart: Iterable[str] = ()) -> Path:
    joined = "-".join([name, *(["small"] if scale == "small" else []), *apart])
    file_name = re.sub(r"[^\w.=+-]+", "-", joined)
    return folder / f"{file_name}.json"


def _keep(
    folder: Path, name: str, scale: str, content: dict[str, Any], apart: Iterable[str] = ()
) -> Path:
    path = _file(folder, name, scale, apart)
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_whole(path, f"{text}\n".encode())
    return path
