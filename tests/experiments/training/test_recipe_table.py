import pytest

from rnnorm.experiments.training.recipe import recipe_names
from rnnorm.experiments.training.recipe_table import recipe_table


def recipes(*words):
    lines = recipe_table(words).partition("\n\n")[0].splitlines()[1:]
    return [" ".join(line.split()) for line in lines]


def test_it_has_every_recipe_in_a_hundred_columns():
    assert [line.split()[0] for line in recipes()] == recipe_names()
    assert max(map(len, recipe_table().splitlines())) <= 100


def test_a_line_has_the_papers_number_the_data_and_the_time():
    (line, _) = recipes("cooijmans2016/pmnist-lstm", "90.2")
    assert line == "cooijmans2016/pmnist-lstm test accuracy, % 90.2 MNIST 7 h"


def test_pixels_and_recordings_of_digits_are_told_apart():
    (line,) = recipes("demo/digits-bn")
    assert "comes along" in line
    assert all("FSDD" in line for line in recipes("transcription/digits"))


def test_words_choose():
    assert 0 < len(recipes("ptb")) < len(recipes())
    assert recipes("PTB", "perplexity") == [r for r in recipes("ptb") if "perplexity" in r]
    with pytest.raises(ValueError, match="no recipe has 'nothing' in its line"):
        recipe_table(["nothing"])
