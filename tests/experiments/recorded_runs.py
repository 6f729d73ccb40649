"""Runs and benchmarks as ``docs/results`` records them, and what a page of results says of one."""

import json
import re
from dataclasses import asdict

from rnnorm.experiments.trained.measurement import Measurement
from rnnorm.experiments.trained.outcome import Outcome

LSTM = "cooijmans2016/ptb-char-lstm"
BN = "cooijmans2016/ptb-char-bn"
HEAD = "recipe,scale,seconds,ratio,ratio_to,backend,kernels,malloc"
KEPT = "MALLOC_MMAP_THRESHOLD_=9 MALLOC_TRIM_THRESHOLD_=9"


def outcome(recipe, best, number=1.32, **given):
    fields = {
        "scale": "paper",
        "title": "a title",
        "paper": "a paper",
        "metric": "test bits per character",
        "small": None,
        "epochs": 3,
        "steps": 600,
        "seconds": 1234.5,
        "best_epoch": 2,
        "tests": (),
        "versions": {},
    }
    return Outcome(**fields | given, recipe=recipe, best=best, number=number)


def measured(value, statistics=None, length=None):
    return Measurement(
        checkpoint="best.ckpt",
        epoch=2,
        statistics=statistics,
        length=length,
        estimated=False,
        overrides=(),
        metrics={"test/loss": 9.0, "test/bits_per_character": value},
    )


def write(folder, outcome, sentences=(), **curve):
    text = json.dumps({**asdict(outcome), "sentences": sentences, **curve})
    name = f"{outcome.label}-{outcome.seed}".replace("/", "-")
    (folder / f"{name}.json").write_text(text)


def write_times(folder, *rows, scale="paper", malloc="default", backend="", kernel="aten"):
    """A file of ``rnnorm bench``: rows of recipe, seconds and ratio to the first of them."""
    lines = [HEAD]
    for recipe, seconds, ratio in rows:
        own = kernel if recipe == rows[0][0] else "cpu"
        lines.append(f"{recipe},{scale},{seconds},{ratio},{rows[0][0]},{backend},{own},{malloc}")
    (folder / f"steps-{len(list(folder.glob('*.csv')))}.csv").write_text("\n".join(lines))


def row(page, recipe):
    """What the tables of a page say of a recipe, by heading."""
    found = {}
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        head, _, *lines = (
            [c.strip() for c in line[1:-1].split("|")] for line in table.splitlines()
        )
        for line in lines:
            if line[0].startswith(f"`{recipe}`"):
                found |= dict(zip(head, line, strict=True))
    return found
