"""The page of results: its tables of scores, steps, seeds, lengths and places."""

import json
from pathlib import Path

import pytest
import yaml
from recorded_runs import BN, KEPT, LSTM, measured, outcome, row, write, write_times

from tools.results.page import page_of
from tools.results.picture import (
    scores_of,
)
from tools.results.recorded import read_recorded

DOCS = Path(__file__).parents[3] / "docs"

STEP = ("seconds a step", "÷ torch.nn", "÷ torch.nn, memory kept", "÷ plain, fused")


def step(page, recipe):
    """Seconds, and the ratios to the three rivals; None where there is no column."""
    of = row(page, recipe)
    return [of.get(name) for name in (*STEP, "seconds of all steps")]


def test_the_page_of_the_docs_is_what_the_command_makes_of_the_committed_files():
    assert page_of(DOCS / "results") == (DOCS / "results.md").read_text(encoding="utf-8")


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


def test_a_table_may_be_of_one_change(folder):
    common = {"title": "Characters", "recipes": [LSTM]}
    tables = [common, common | {"title": "Half", "change": "precision=bf16-mixed"}]
    (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "", "tables": tables}))
    write(folder, outcome(LSTM, 1.5, seed=1, changes=("precision=bf16-mixed",)))
    write(folder, outcome(LSTM, 1.75, seed=1, changes=("size=8",)))
    others, half = page_of(folder).split("## Half")
    assert row(others, LSTM + ", size=8")["best validation (epoch)"].startswith("1.750")
    assert row(half, LSTM + ", precision=bf16-mixed")["best validation (epoch)"].startswith("1.500")
    for page, change in ((others, "bf16"), (half, "size")):
        assert change not in page


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


def test_the_papers_number_is_not_named_for_a_small_training(folder):
    for scale, said in ((None, f"`{LSTM}` (1.38 in the paper)"), ("small", f"`{LSTM}`.")):
        table = {"title": "Characters", "recipes": [LSTM]} | ({"scale": scale} if scale else {})
        (folder / "tables.yaml").write_text(yaml.safe_dump({"text": "", "tables": [table]}))
        assert f"Not run yet: {said}" in page_of(folder)


def test_lengths_have_a_table_of_their_own(folder):
    tests = [measured(1.5 + length / 1000, "batch", length) for length in (50, 100)]
    write(folder, outcome(BN, 1.5, tests=(*tests, measured(1.9, "population", 100))))
    write(folder, outcome(LSTM, 1.5, tests=(measured(1.7, None, 50),)))
    page = page_of(folder)
    assert "| recipe | statistics | 50 | 100 |" in page
    assert f"| `{BN}` | batch | 1.550 | 1.600 |" in page
    assert f"| `{BN}` | population | – | 1.900 |" in page
    assert f"| `{LSTM}` | – | 1.700 | – |" in page


def test_sentences_are_quoted(folder):
    write(folder, outcome(BN, 1.5), ["the cat sat", "a mat"])
    assert f"Written by `{BN}`:\n\n- the cat sat\n- a mat\n" in page_of(folder)
