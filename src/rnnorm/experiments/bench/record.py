"""What a benchmark leaves behind: a table with the machine in every line, and a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rnnorm.experiments.training.write_whole import write_whole

Record = dict[str, Any]


def refuse_file(folder: str | Path | None) -> None:
    """Refuse to write into a file as a folder, before anything is timed.

    Raises:
        NotADirectoryError: it is one.
    """
    if folder is not None and Path(folder).is_file():
        raise NotADirectoryError(f"{folder} is no folder")


def write(
    records: Sequence[Record],
    folder: str | Path,
    name: str,
    *,
    row: Callable[[Record], str],
    series: Callable[[Record], str],
    title: str,
) -> list[Path]:
    """Write ``name.csv``, and ``name.png`` with the field ``ratio`` of every record.

    Args:
        records: all with the same fields.
        folder: created if it is not there.
        name: of both files.
        row: the line of the picture that a record is a point of.
        series: what its point is called in the legend.
        title: what the ratio is.

    Returns:
        the two files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table, picture = folder / f"{name}.csv", folder / f"{name}.png"
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0])
    writer.writeheader()
    writer.writerows(records)
    write_whole(table, text.getvalue().encode())
    write_whole(picture, _drawn([(row(r), series(r), r["ratio"]) for r in records], title))
    return [table, picture]


def _drawn(points: Sequence[tuple[str, str, float]], title: str) -> bytes:
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys(row for row, _, _ in points))
    figure = Figure(figsize=(9, 1.6 + 0.28 * len(rows)), layout="constrained", dpi=120)
    axes = figure.subplots()
    for name in dict.fromkeys(series for _, series, _ in points):
        own = [(ratio, rows.index(row)) for row, series, ratio in points if series == name]
        axes.plot(*zip(*own, strict=True), "o", markersize=6, alpha=0.8, label=name)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    # a dollar in a recipe's name begins no mathematics
    axes.set_xlabel(f"{title}; less is better", parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    ratios = [ratio for _, _, ratio in points]
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if min(ratios) < 2 * t]
    ticks = [t for t in ticks if t < 2 * max(ratios)]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks], minor=False)
    axes.tick_params(axis="x", which="minor", labelbottom=False)
    axes.grid(axis="y", alpha=0.3)
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    data = io.BytesIO()
    figure.savefig(data)
    return data.getvalue()
