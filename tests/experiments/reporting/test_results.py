import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import yaml

from rnnorm.experiments.comparing.picture import looks_of
from rnnorm.experiments.recipe.label import changes
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.searching.search import search
from rnnorm.experiments.trained.measurement import Measurement
from rnnorm.experiments.trained.outcome import Outcome, read_outcome
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.fit import fit
from tools.results import recorded as results_files
from tools.results import step_times
from tools.results.page import page_of
from tools.results.picture import (
    curves_of,
    draw_scores,
    draw_validation,
    scores_of,
)
from tools.results.record import record, results
from tools.results.recorded import read_recorded
from tools.results.step_times import read_steps

DOCS = Path(__file__).parents[3] / "docs"
LSTM, BN = "cooijmans2016/ptb-char-lstm", "cooijmans2016/ptb-char-bn"
_HEAD = "recipe,scale,seconds,ratio,ratio_to,backend,kernels,malloc"
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


@pytest.fixture
def folder(tmp_path):
    """A folder of recorded files: one table of two recipes, none of them run."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    table = {"title": "Characters", "recipes": [LSTM, BN], "text": "What *we* think."}
    (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "Before.", "tables": [table]}))
    return folder


def write(folder, outcome, sentences=(), **curve):
    text = json.dumps({**asdict(outcome), "sentences": sentences, **curve})
    name = f"{outcome.label}-{outcome.seed}".replace("/", "-")
    (folder / f"{name}.json").write_text(text)


def write_times(folder, *rows, scale="paper", malloc="default", backend="", kernel="aten"):
    """A file of ``rnnorm bench``: rows of recipe, seconds and ratio to the first of them."""
    lines = [_HEAD]
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


STEP = ("seconds a step", "÷ torch.nn", "÷ torch.nn, memory kept", "÷ plain, fused")


def step(page, recipe):
    """Seconds, and the ratios to the three rivals; None where there is no column."""
    of = row(page, recipe)
    return [of.get(name) for name in (*STEP, "seconds of all steps")]


def test_the_page_of_the_docs_is_what_the_command_makes_of_the_committed_files():
    assert page_of(DOCS / "results") == (DOCS / "results.md").read_text(encoding="utf-8")


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


def test_a_storage_without_a_study_is_refused(folder, tmp_path):
    (tmp_path / "new.journal").touch()
    with pytest.raises(ValueError, match=r"journal:.*new\.journal is no study: it is empty"):
        results([f"journal:{tmp_path}/new.journal"], docs=folder.parent)


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


def test_what_was_not_run_is_said_with_the_papers_number(folder):
    page = page_of(folder)
    assert f"Not run yet: `{LSTM}` (1.38 in the paper), `{BN}` (1.32 in the paper)." in page
    assert page.startswith("# Results\n\nBefore.\n\n## Characters\n")
    assert page.endswith("What *we* think.\n")


def test_a_row_holds_the_papers_number_and_ours(folder):
    tests = (measured(1.42, "population"), measured(1.44, "batch"))
    write(folder, outcome(BN, 1.5, tests=tests))
    assert row(page_of(folder), BN) == {
        "recipe": f"`{BN}`",
        "paper": "1.32",
        "ours, population statistics": "1.420",
        "ours, batch statistics": "1.440",
        "test loss, nats": "9.000",
        "best validation (epoch)": "1.500 (2)",
        "epochs": "3",
        "steps": "600",
    }
    assert f"Not run yet: `{LSTM}`" in page_of(folder)


def test_a_column_is_left_out_where_no_row_has_a_value(folder):
    write(folder, outcome(LSTM, 1.5, number=None, tests=(measured(1.7),)))
    assert not {"paper", "ours, batch statistics"} & row(page_of(folder), LSTM).keys()
    write(folder, outcome(BN, 1.5, tests=(measured(1.44, "batch"),)))
    page = page_of(folder)
    assert (row(page, LSTM)["paper"], row(page, BN)["paper"]) == ("–", "1.32")
    assert row(page, LSTM)["ours, batch statistics"] == "–"


def test_seconds_are_those_of_the_benchmark_and_not_of_the_training(folder):
    write(folder, outcome(LSTM, 1.5))
    write(folder, outcome(BN, 1.5))
    write_times(folder, [LSTM, 0.25, 1.0], [BN, 0.2, 0.8])
    page = page_of(folder)
    assert step(page, LSTM) == ["0.250", "1.00", None, None, "150"]
    assert step(page, BN) == ["0.200", "0.80", None, None, "120"]
    assert f"Time of a training step, and its ratio to that of `{LSTM}`:" in page
    assert "1234" not in page


def test_a_step_is_a_ratio_to_each_rival_that_was_timed(folder):
    write(folder, outcome(BN, 1.5))
    write_times(folder, [LSTM, 0.25, 1.0], [BN, 0.2, 0.8])
    write_times(folder, [LSTM, 0.1, 1.0], [BN, 0.19, 1.9], malloc=KEPT)
    write_times(folder, [LSTM, 0.18, 1.0], [BN, 0.21, 1.15], backend="cpu", kernel="cpu")
    assert step(page_of(folder), BN) == ["0.200", "0.80", "1.90", "1.15", "120"]
    # where the plain recipe chooses our kernel
    for file in folder.glob("*.csv"):
        file.unlink()
    write_times(folder, [LSTM, 0.18, 1.0], [BN, 0.21, 1.15], kernel="cpu")
    write_times(folder, [LSTM, 0.1, 1.0], [BN, 0.22, 1.2], malloc=KEPT, kernel="cpu")
    assert step(page_of(folder), BN) == ["0.210", None, None, "1.15", "126"]
    # beside torch.nn, whose step leaves other memory behind; another malloc; another kernel
    theirs = f"{LSTM} on torch.nn"
    write_times(folder, [theirs, 0.4, 1.0], [BN, 0.3, 0.75], kernel="torch.nn")
    write_times(folder, [LSTM, 0.1, 1.0], [BN, 0.22, 1.2], malloc="LD_PRELOAD=x", kernel="aten")
    write_times(folder, [LSTM, 0.9, 1.0], [BN, 1.8, 2], backend="reference", kernel="reference")
    assert step(page_of(folder), BN) == ["0.210", "0.75", None, "1.15", "126"]
    write_times(folder, [LSTM, 0.2, 1.0], [BN, 0.21, 1.05], backend="cpu", kernel="cpu")
    with pytest.raises(
        ValueError, match=rf"steps-5\.csv .* has the ratio of {LSTM} to plain, fused"
    ):
        page_of(folder)


def test_seeds_share_a_row_with_their_mean_and_deviation(folder):
    for seed, value in ((1, 1.40), (2, 1.44), (3, 1.42)):
        tests = (measured(value, "population"),)
        write(folder, outcome(BN, 1.5 + seed, tests=tests, seed=seed, best_epoch=2))
    write(folder, outcome(BN, 1.5, epochs=9, seed=4))
    write(folder, outcome(BN, 1.6, changes=("norm=layer",), seed=1))
    page = page_of(folder)
    assert "Of several seeds, their mean and standard deviation." in page
    scores = "1.420 ± 0.020 | 9.000 ± 0.000 | 3.500 ± 1.000 (2, 2, 2)"
    assert f"| `{BN}` (3 seeds) | 3 | 1.32 | {scores} | 600 |" in page
    assert f"| `{BN}` | 9 | 1.32 |" in page
    # the paper has no such row
    assert f"| `{BN}, norm=layer` | 3 | – |" in page
    _, (table,) = read_recorded(folder)
    scores = scores_of(table)[f"{BN} (paper, 3 epochs)"]
    assert scores["the paper's"] == [1.32]
    assert scores["ours, population statistics"] == [1.40, 1.44, 1.42]


def test_another_model_than_the_recipes_has_no_time_of_the_recipe(folder):
    write(folder, outcome(BN, 1.6, changes=("norm=layer",), seed=1))
    write_times(folder, [BN, 0.2, 0.8])
    assert step(page_of(folder), f"{BN}, norm=layer") == [None] * 5


def test_where_runs_were_trained_stands_below_their_table(folder):
    here = {"processor": "P", "threads": "1", "commit": "abc", "kernels": "cpu"}
    for seed in (1, 2):
        write(folder, outcome(BN, 1.5, seed=seed, places=(here,)))
    there = here | {"processor": "Q", "threads": "2", "commit": ""}
    write(folder, outcome(LSTM, 1.5, seed=1, places=(here, there), minutes=2.5))
    page = page_of(folder)
    assert f"- `{BN}`, seeds 1, 2: P, 1 thread, kernels cpu, commit abc\n" in page
    told = "P, 1 thread, kernels cpu, commit abc; Q, 2 threads, kernels cpu"
    assert f"- `{LSTM}`, seed 1: {told}\n" in page
    assert row(page, LSTM)["epochs"] == "3 (2.5 minutes)"


def test_a_machine_is_named_once_with_all_commits_that_it_ran(folder):
    here = {"processor": "P", "threads": "1", "commit": "abc", "kernels": "cpu"}
    for seed, commit in ((1, "abc"), (2, "def"), (3, "abc")):
        write(folder, outcome(BN, 1.5, seed=seed, places=(here | {"commit": commit},)))
    told = "P, 1 thread, kernels cpu, commits abc, def"
    assert f"- `{BN}`, seeds 1, 2, 3: {told}\n" in page_of(folder)


def test_a_small_scale_is_said_in_its_row(folder):
    write(folder, outcome(BN, 1.5, scale="small", small="8 units"))
    assert row(page_of(folder), BN)["recipe"] == f"`{BN}` (small: 8 units)"


def test_a_table_may_be_of_one_scale(folder):
    common = {"title": "Characters", "recipes": [LSTM]}
    tables = [common | {"scale": "paper"}, common | {"title": "Small", "scale": "small"}]
    (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "", "tables": tables}))
    write_times(folder, [LSTM, 0.5, 1])
    write_times(folder, [LSTM, 0.125, 1], scale="small")
    write(folder, outcome(LSTM, 1.5, seed=1))
    write(folder, outcome(LSTM, 1.75, seed=2, scale="small", small="8 units"))
    head = ["trial", "validation bits per character"]
    found = {"recipe": LSTM, "small": None, "overrides": [], "failures": "", "rows": [head]}
    (folder / "search-lstm.json").write_text(json.dumps(found))
    paper, small = page_of(folder).split("## Small")
    assert "Random search" in paper
    assert "Random search" not in small
    assert row(paper, LSTM)["best validation (epoch)"].startswith("1.500")
    assert row(paper, LSTM)["seconds a step"] == "0.500"
    assert row(small, LSTM)["recipe"] == f"`{LSTM}`"
    assert row(small, LSTM)["best validation (epoch)"].startswith("1.750")
    assert row(small, LSTM)["seconds a step"] == "0.125"
    (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "", "tables": tables[:1]}))
    with pytest.raises(ValueError, match=r"has no table for .*-2\.json"):
        page_of(folder)


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        {"text": ""},
        {"text": "", "tables": [3]},
        {"text": "", "tables": [{"title": "A"}]},
    ],
    ids=str,
)
def test_tables_that_are_none_are_refused_by_name(folder, given):
    (folder / "tables.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(ValueError, match=r"tables\.yaml.* must have a"):
        page_of(folder)


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


def test_the_papers_number_is_not_named_for_a_small_training(folder):
    for scale, said in ((None, f"`{LSTM}` (1.38 in the paper)"), ("small", f"`{LSTM}`.")):
        table = {"title": "Characters", "recipes": [LSTM]} | ({"scale": scale} if scale else {})
        (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "", "tables": [table]}))
        assert f"Not run yet: {said}" in page_of(folder)


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


def test_lengths_have_a_table_of_their_own(folder):
    tests = [measured(1.5 + length / 1000, "batch", length) for length in (50, 100)]
    write(folder, outcome(BN, 1.5, tests=(*tests, measured(1.9, "population", 100))))
    write(folder, outcome(LSTM, 1.5, tests=(measured(1.7, None, 50),)))
    page = page_of(folder)
    assert "| recipe | statistics | 50 | 100 |" in page
    assert f"| `{BN}` | batch | 1.550 | 1.600 |" in page
    assert f"| `{BN}` | population | – | 1.900 |" in page
    assert f"| `{LSTM}` | – | 1.700 | – |" in page


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


def test_sentences_are_quoted(folder):
    write(folder, outcome(BN, 1.5), ["the cat sat", "a mat"])
    assert f"Written by `{BN}`:\n\n- the cat sat\n- a mat\n" in page_of(folder)


def test_a_run_is_recorded_whole_and_its_later_state_replaces_it(folder, tiny, capsys):
    (folder / "tables.yaml").write_text(
        "text: ''\ntables: [{title: Digits, recipes: [demo/digits-bn]}]\n"
    )
    run = fit("demo/digits-bn", overrides=[*tiny, "--trainer.max_epochs=1"])
    (run.folder / "sentences.txt").write_text("one\ntwo\n")
    page = results([run.folder], docs=folder.parent)
    untested = row(page.read_text(), read_outcome(run.folder).label)
    assert not {"ours, population statistics", "sampling error"} & untested.keys()
    assert (untested["epochs"], untested["steps"]) == ("1", "7")
    assert "- one\n- two\n" in page.read_text()

    run = fit(resume=run.folder, overrides=["--trainer.max_epochs=2"])
    population, _ = measure("demo/digits-bn", run.best_checkpoint)
    assert results([run.folder], docs=folder.parent) == page
    of = row(page.read_text(), read_outcome(run.folder).label)
    assert (of["epochs"], of["steps"]) == ("2", "14")
    scores = {"ours, population statistics": "accuracy", "sampling error": "sampling_error"}
    for heading, name in scores.items():
        assert float(of[heading]) == pytest.approx(
            100 * population.metrics[f"test/{name}"], abs=0.006
        )
    (path,) = folder.glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["score"] == "accuracy"
    assert kept["curve"]["steps"] == [7, 14]
    assert max(kept["curve"]["values"]) == pytest.approx(100 * kept["best"], rel=1e-4)
    assert path.name.startswith("demo-digits-bn-hidden_size=8-")
    assert path.name.endswith("-seed1.json")
    before = page.read_text()
    assert results(docs=folder.parent).read_text() == before


@pytest.mark.parametrize("stored", [False, True])
def test_a_search_is_recorded_with_all_its_trials(folder, tiny, tmp_path, stored):
    recipe = str(tmp_path / "own.yaml")
    ranges = {"optimizer.init_args.lr": {"choices": [0.001, 1e38]}}
    config = read_recipe("demo/digits-lstm").config
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump(config | {"search": {"trials": 3, "space": ranges}})
    )
    (folder / "tables.yaml").write_text(
        yaml.safe_dump({"text": "", "tables": [{"title": "Search", "recipes": [recipe]}]})
    )
    url = "journal:study.journal" if stored else None
    options = [option for option in tiny if "max_epochs" not in option]
    found = search(recipe, "study", epochs=1, overrides=options, storage=url)
    page = results([url or "study"], docs=folder.parent).read_text()
    assert f"Random search with `{recipe}` ({'; '.join(found.overrides)})." in page
    assert f" {found.failures()}." in page
    assert "| trial | validation accuracy, % | lr |" in page
    for number, *cells in found.rows()[1:]:
        assert f"| {number} | {' | '.join(cells)} |" in page
    assert "Not run yet" not in page
    (path,) = folder.glob("search-*.json")
    # one of other options would stand beside it
    assert path.stem.endswith("-".join(changes(found.overrides)))
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no recorded search"):
        page_of(folder)


def test_a_run_that_is_refused_leaves_the_records_as_they_were(folder):
    run = fit("demo/digits-bn", epochs=1)
    before = sorted(folder.iterdir())
    with pytest.raises(ValueError, match="has no table for demo-digits-bn"):
        results([run.folder], docs=folder.parent)
    assert sorted(folder.iterdir()) == before
    # which it would replace
    for name in ("demo-digits-bn.json", "demo-digits-bn-seed1.json"):
        (folder / name).write_text("{}")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(FileNotFoundError, match="no run in nowhere"):
        results([run.folder, "nowhere"], docs=folder.parent)
    assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (run.folder / "sentences.txt").write_bytes(b"caf\351\n")
    with pytest.raises(ValueError, match=r"sentences\.txt"):
        results([run.folder], docs=folder.parent)


def test_a_small_run_has_a_file_of_its_own(folder, tiny):
    run = fit("demo/digits-bn", overrides=[*tiny, "--trainer.max_epochs=1"])
    about = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps(about | {"scale": "small"}))
    assert record(run.folder, folder).name.startswith("demo-digits-bn-small-hidden_size=8-")


def test_a_record_names_recipe_changes_and_seed_and_replaces_one_without_a_seed(folder, tiny):
    old = folder / "demo-digits-bn.json"
    old.touch()
    options = [*tiny, "--trainer.max_epochs=1"]
    changed = fit("demo/digits-bn", run_dir="a", overrides=[*options, "--model.norm=layer"], seed=2)
    assert record(changed.folder, folder).name.endswith("-norm=layer-seed2.json")
    assert old.exists()
    run = fit("demo/digits-bn", run_dir="b", epochs=1, seed=3)
    path = record(run.folder, folder)
    assert path.name == "demo-digits-bn-seed3.json"
    assert not old.exists()
    (place,) = json.loads(path.read_text())["places"]
    assert place["kernels"] in ("cpu", "reference")
    assert place["processor"]
    assert place["threads"] == str(torch.get_num_threads())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_neither_replaces_nor_joins_one_whose_options_end_in_the_same_word(
    folder, tiny, seed
):
    options = [*tiny, "--trainer.max_epochs=1"]
    one, two = (
        fit("demo/digits-bn", run_dir=run, seed=n, overrides=[*options, f"--{name}=0.5"]).folder
        for run, n, name in (
            ("a", 1, "optimizer.momentum"),
            ("b", seed, "model.norm_options.momentum"),
        )
    )
    path = record(one, folder)
    assert record(one, folder) == path
    before = path.read_bytes()
    said = r"of a run with .*, optimizer\.momentum=0\.5, and b has .*norm_options\.momentum=0\.5"
    with pytest.raises(ValueError, match=said):
        record(two, folder)
    assert path.read_bytes() == before
    kept = json.loads(before)
    assert kept.pop("overrides")[-1] == "optimizer.momentum=0.5"
    # a record of before says none
    path.write_text(json.dumps(kept))
    assert record(two, folder).name == path.name.replace("seed1", f"seed{seed}")


def test_a_run_without_a_table_is_refused(folder):
    write(folder, replace(outcome(BN, 1.5), recipe="demo/digits-bn"))
    with pytest.raises(
        ValueError, match=r"tables\.yaml has no table for demo-digits-bn-None\.json"
    ):
        page_of(folder)


@pytest.mark.parametrize("content", ["{", "{}", '{"tests": [], "sentences": []}'])
def test_a_broken_record_is_named(folder, content):
    (folder / "a.json").write_text(content)
    with pytest.raises(ValueError, match=r"a\.json is no recorded run"):
        page_of(folder)


@pytest.mark.parametrize("name", ["a.json", "search-a.json", "a.csv"])
def test_a_file_of_any_size_is_not_held_in_memory(folder, monkeypatch, name):
    for module in (results_files, step_times):
        monkeypatch.setattr(module, "_LIMIT", 1 << 16)
    (folder / name).write_text(" " * (1 << 17))
    with pytest.raises(ValueError, match=rf"{name} is too large"):
        page_of(folder)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "recipe,ratio\na,1\n",
        f"{_HEAD}\na,paper,1,1,b,,cpu,default\n",
        f"{_HEAD}\na,paper,x,1,a,,cpu,default\n",
        f"{_HEAD}\na,paper,1,1,a,,cpu,default\nb,pap",
    ],
)
def test_a_broken_benchmark_is_named(folder, content):
    (folder / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=r"a\.csv(: line 3| is (empty|none of rnnorm bench))"):
        page_of(folder)
