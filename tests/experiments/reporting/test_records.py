"""How runs, searches and benchmarks are recorded, and records that are refused."""

import json
from dataclasses import replace

import pytest
import torch
import yaml
from recorded_runs import BN, HEAD, outcome, row, write

from rnnorm.experiments.recipe.label import changes
from rnnorm.experiments.recipe.recipe import read_recipe
from rnnorm.experiments.searching.search import search
from rnnorm.experiments.trained.outcome import read_outcome
from rnnorm.experiments.trained.test import measure
from rnnorm.experiments.training.fit import fit
from tools.results import recorded as results_files
from tools.results import step_times
from tools.results.page import page_of
from tools.results.record import record, results


def test_a_storage_without_a_study_is_refused(folder, tmp_path):
    (tmp_path / "new.journal").touch()
    with pytest.raises(ValueError, match=r"journal:.*new\.journal is not a study: it is empty"):
        results([f"journal:{tmp_path}/new.journal"], docs=folder.parent)


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
        f"{HEAD}\na,paper,1,1,b,,cpu,default\n",
        f"{HEAD}\na,paper,x,1,a,,cpu,default\n",
        f"{HEAD}\na,paper,1,1,a,,cpu,default\nb,pap",
    ],
)
def test_a_broken_benchmark_is_named(folder, content):
    (folder / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=r"a\.csv(: line 3| is (empty|none of rnnorm bench))"):
        page_of(folder)
