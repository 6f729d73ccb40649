import pytest
import yaml

from rnnorm.experiments.building import Built, as_text
from rnnorm.experiments.recipe import read_recipe, recipe_names, recipes_table

NUMBERS = {
    "cooijmans2016/smnist-lstm": 98.9,
    "cooijmans2016/smnist-bn": 99.0,
    "cooijmans2016/pmnist-lstm": 90.2,
    "cooijmans2016/pmnist-bn": 95.4,
}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_says_what_it_is(name):
    recipe = read_recipe(name)
    assert {"title", "paper", "metric"} <= recipe.about.keys()
    built = Built(as_text(recipe.config))
    assert built.datamodule.hparams["batch_size"] == 100
    assert built.model.hparams["hidden_size"] == 100


@pytest.mark.parametrize("name", [n for n in recipe_names() if not n.startswith("demo/")])
def test_every_recipe_of_a_paper_has_a_small_scale(name):
    paper, small = read_recipe(name), read_recipe(name, "small")
    assert small.about["small"]
    assert small.config["trainer"]["max_epochs"] < paper.config["trainer"]["max_epochs"]
    assert small.config["optimizer"] == paper.config["optimizer"]
    Built(as_text(small.config))


@pytest.mark.parametrize(("name", "number"), NUMBERS.items())
def test_the_papers_numbers(name, number):
    assert read_recipe(name).about["number"] == number
    line = next(line for line in recipes_table().splitlines() if line.startswith(f"{name} "))
    assert str(number) in line


@pytest.mark.parametrize("name", NUMBERS)
def test_the_papers_settings(name):
    config = read_recipe(name).config
    assert config["trainer"]["gradient_clip_val"] == 1
    assert config["optimizer"]["class_path"] == "torch.optim.RMSprop"
    assert config["optimizer"]["init_args"]["lr"] == 0.001
    assert config["optimizer"]["init_args"]["alpha"] == 0.9
    data = config["data"]["init_args"]
    permuted = "pmnist" in name
    assert data["permutation"] == ("fixed" if permuted else "none")
    # black borders come first in the image's own order: only there is the noise needed
    assert config["model"]["init_args"]["initial_noise"] == (0 if permuted else 0.1)


def test_models_of_the_demo_differ_in_the_norm_alone():
    configs = [read_recipe(f"demo/digits-{n}").config for n in ("lstm", "bn", "ln")]
    norms = [c["model"]["init_args"].pop("norm") for c in configs]
    assert norms == [None, "batch", "layer"]
    assert configs[0] == configs[1] == configs[2]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cooijmans2016/pmnist-bm", "cooijmans2016/pmnist-bn"),
        ("pmnist-bn", "cooijmans2016/pmnist-bn"),
        ("zzz", "demo/digits-ln"),
    ],
)
def test_an_unknown_recipe_is_answered_with_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"no recipe is called '{name}'.*{near}"):
        read_recipe(name)


def test_unknown_scale():
    with pytest.raises(ValueError, match="'paper' or 'small', got 'tiny'"):
        read_recipe("cooijmans2016/pmnist-bn", "tiny")
    with pytest.raises(ValueError, match="no small scale"):
        read_recipe("demo/digits-bn", "small")


def test_a_recipe_of_ones_own(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(read_recipe("demo/digits-bn").config))
    assert read_recipe(str(path)).config == read_recipe("demo/digits-bn").config
    path.write_text("trainer: [")
    with pytest.raises(ValueError, match="is not YAML"):
        read_recipe(str(path))
    path.write_text("trainer: {}")
    with pytest.raises(ValueError, match="needs the keys 'model' and 'data'"):
        read_recipe(str(path))


def test_one_seed_for_weights_and_data():
    built = Built(as_text(read_recipe("demo/digits-bn").config), ["--seed_everything=7"])
    assert built.datamodule.hparams["seed"] == 7
