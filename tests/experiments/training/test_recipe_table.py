import csv
from pathlib import Path

import pytest

from rnnorm.experiments.recipe.recipe import FOLDER, recipe_names
from rnnorm.experiments.recipe.table import recipe_table


def recipes(*words):
    lines = recipe_table(words).partition("\n\n")[0].splitlines()[1:]
    return [" ".join(line.split()) for line in lines]


def test_it_has_every_recipe_in_a_hundred_columns():
    assert [line.split()[0] for line in recipes()] == recipe_names()
    assert max(map(len, recipe_table().splitlines())) <= 100


def test_a_line_has_the_papers_number_the_data_and_the_time():
    (line, _) = recipes("cooijmans2016/pmnist-lstm", "90.2")
    assert line == "cooijmans2016/pmnist-lstm test accuracy, % 90.2 MNIST 8 h"


def test_pixels_and_recordings_of_digits_are_told_apart():
    assert all("comes along" in line for line in recipes("demo/digits-bn"))
    assert all("FSDD" in line for line in recipes("transcription/digits"))


def test_words_choose():
    assert 0 < len(recipes("ptb")) < len(recipes())
    assert recipes("PTB", "perplexity") == [r for r in recipes("ptb") if "perplexity" in r]
    with pytest.raises(ValueError, match="no recipe has 'nothing' in its line"):
        recipe_table(["nothing"])


def test_the_seconds_of_a_step_are_those_of_the_results():
    def read(path):
        return list(csv.DictReader(path.read_text().splitlines()))

    told = {row["recipe"]: float(row["seconds_per_step"]) for row in read(FOLDER / "times.csv")}
    steps = Path(__file__).parents[3] / "docs" / "results" / "steps"
    for path in sorted(steps.glob("*.csv")):
        # as a user has them: no other kernel, and malloc as it is
        if not path.stem.endswith(("-fused", "-kept", "-torch")):
            for row in read(path):
                assert told[row["recipe"]] == round(float(row["seconds"]), 4), (path, row["recipe"])
