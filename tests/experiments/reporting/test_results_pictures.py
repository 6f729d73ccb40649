"""The pictures of the results: scores by model, and curves of the validation."""

import json
import re
from pathlib import Path

import pytest
import yaml
from recorded_runs import BN, LSTM, measured, outcome, write, write_times

from rnnorm.experiments.pictures import looks_of
from tools.results.page import page_of
from tools.results.picture import (
    curves_of,
    draw_scores,
    draw_validation,
    scores_of,
)
from tools.results.record import results
from tools.results.recorded import read_recorded
from tools.results.step_times import read_steps

DOCS = Path(__file__).parents[3] / "docs"


def test_each_table_with_a_score_has_its_picture_in_the_docs():
    _, tables = read_recorded(DOCS / "results")
    steps = read_steps(DOCS / "results")
    shown = {table.picture for table in tables if scores_of(table)}
    shown |= {table.curves_picture for table in tables if curves_of(table, steps)}
    assert shown == {path.name for path in (DOCS / "results").glob("*.svg")}
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    assert all(f"(results/{name})" in page for name in shown)


def test_a_picture_has_a_mark_for_each_score(folder):
    tests = (measured(1.42, "population"), measured(1.44, "batch"))
    write(folder, outcome(BN, 1.5, tests=tests))
    write(folder, outcome(LSTM, 1.5, number=None, tests=(measured(1.7),)))
    _, (table,) = read_recorded(folder)
    assert scores_of(table) == {
        LSTM: {"ours, population statistics": [1.7]},
        BN: {
            "the paper's": [1.32],
            "ours, population statistics": [1.42],
            "ours, batch statistics": [1.44],
        },
    }
    picture = draw_scores(table)
    assert picture == draw_scores(table)
    for text in ("ptb-char-bn", "ptb-char-lstm", "test bits per character", "the paper's"):
        assert text.encode() in picture


def test_a_search_stands_beside_the_runs_of_its_recipe(folder):
    write(folder, outcome(BN, 1.5, tests=(measured(1.42),)))
    head = ["trial", "validation bits per character"]
    found = {"recipe": BN, "small": None, "overrides": [], "failures": "", "rows": [head, [0, 1.9]]}
    (folder / "search-bn.json").write_text(json.dumps(found))
    again = found | {"rows": [head, [0, 1.8], [1, "failed"]]}
    (folder / "search-bn-again.json").write_text(json.dumps(again))
    scores = scores_of(read_recorded(folder)[1][0])
    assert scores[BN]["ours, population statistics"] == [1.42]
    assert scores[f"{BN}, search"] == {"trials": [1.8, 1.9]}


def test_curves_go_against_epochs_and_the_seconds_of_the_benchmark(folder):
    curve = {"score": "bits_per_character", "curve": {"steps": [200, 600], "values": [1.9, 1.5]}}
    write(folder, outcome(LSTM, 1.5, seed=1), **curve)
    known = curve["curve"] | {"epochs": [1, 2.5]}
    write(folder, outcome(BN, 1.5, seed=1), **curve | {"curve": known})
    write(folder, outcome(BN, 1.5, seed=2))
    write_times(folder, [BN, 0.5, 0.8])
    _, (table,) = read_recorded(folder)
    steps = read_steps(folder)
    lstm, bn = curves_of(table, steps)
    # the older records do not say the epochs
    assert (lstm.model, lstm.epochs, lstm.seconds, lstm.values) == (LSTM, [1, 3], [], [1.9, 1.5])
    assert (bn.model, bn.epochs, bn.seconds, bn.values) == (BN, [1, 2.5], [100, 300], [1.9, 1.5])
    # seconds of one model say nothing
    assert b">training seconds<" not in draw_validation(table, steps)
    steps |= {(LSTM, "paper"): steps[BN, "paper"]}
    picture = draw_validation(table, steps)
    assert picture == draw_validation(table, steps)
    for text in ("epochs", "training seconds", "validation bits per character", LSTM, BN):
        assert f">{text}<".encode() in picture
    assert "(results/characters-curves.svg)" in page_of(folder)
    assert (results(docs=folder.parent).parent / "results" / "characters-curves.svg").is_file()


def test_many_models_make_the_picture_higher_and_leave_the_panel_as_it_is(folder):
    curve = {"score": "bits_per_character", "curve": {"steps": [200, 600], "values": [1.9, 1.5]}}
    panels = []
    for models in (2, 16):
        for model in range(models):
            write(folder, outcome(BN, 1.5, seed=1, changes=(f"hidden_size={model}",)), **curve)
        _, (table,) = read_recorded(folder)
        picture = draw_validation(table, {}).decode()
        # the background of the axes, from its lower left corner to its upper one
        path = picture.partition('<g id="patch_2">')[2].partition(" z")[0]
        lower, _, upper = re.findall(r"[ML] [\d.]+ ([\d.]+)", path)[:3]
        panels.append(float(lower) - float(upper))
    assert panels[1] == pytest.approx(panels[0], rel=0.1)


def test_rows_of_several_budgets_are_told_apart_in_the_pictures(folder):
    write(folder, outcome(BN, 1.5, epochs=9, tests=(measured(1.4),)))
    write(folder, outcome(LSTM, 1.6, epochs=1, tests=(measured(1.5),)))
    table = read_recorded(folder)[1][0]
    assert list(scores_of(table)) == [f"{LSTM} (1 epoch)", f"{BN} (9 epochs)"]
    page = page_of(folder)
    assert page.index("After 9 epochs:") > page.index("After 1 epoch:")
    assert f"| `{BN}` | 9 |" in page


def test_a_model_has_one_colour_in_both_pictures(folder):
    curve = {"score": "bits_per_character", "curve": {"steps": [200, 600], "values": [1.9, 1.5]}}
    tests = (measured(1.42, "population"), measured(1.44, "batch"))
    write(folder, outcome(BN, 1.5, tests=tests), **curve)
    write(folder, outcome(LSTM, 1.5, tests=(measured(1.5),)))
    table = read_recorded(folder)[1][0]
    grey, red = (looks_of([LSTM, BN])[name].colour.encode() for name in (LSTM, BN))
    scores, curves = draw_scores(table), draw_validation(table, {})
    assert (grey in scores, red in scores) == (True, True)
    # the LSTM has no curve, and the BN-LSTM's has its own colour nevertheless
    assert (grey in curves, red in curves) == (False, True)


def test_recipes_of_one_name_have_their_paper_in_the_picture(folder):
    names = ["gal2016/ptb-char", "semeniuta2016/ptb-char", LSTM]
    table = {"title": "Characters", "recipes": names}
    (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "", "tables": [table]}))
    for name in names:
        write(folder, outcome(name, 1.5))
    picture = draw_scores(read_recorded(folder)[1][0]).decode()
    assert [n for n in (*names, "ptb-char-lstm") if f">{n}<" in picture] == [
        *names[:2],
        "ptb-char-lstm",
    ]


def test_another_scale_or_budget_has_a_line_of_its_own(folder):
    curve = {"score": "bits_per_character", "curve": {"steps": [200, 600], "values": [1.9, 1.5]}}
    for scale, epochs, value in (("paper", 3, 1.5), ("paper", 9, 1.4), ("small", 3, 1.9)):
        tests = (measured(value, None, 50), measured(value))
        seed = round(10 * value)
        run = outcome(BN, 1.5, scale=scale, epochs=epochs, seed=seed, tests=tests)
        write(folder, run, **curve)
    curves = curves_of(read_recorded(folder)[1][0], {})
    assert len({each.model for each in curves}) == len(curves) == 3
    page, scores = page_of(folder), scores_of(read_recorded(folder)[1][0])
    for apart, value in (("paper, 3", 1.5), ("paper, 9", 1.4), ("small, 3", 1.9)):
        assert f"| `{BN} ({apart} epochs)` | – | {value:.3f} |" in page
        assert scores[f"{BN} ({apart} epochs)"]["ours, population statistics"] == [value]
