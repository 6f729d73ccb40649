"""The papers' numbers and settings in the recipes, and the layer norm twins of the plain ones."""

import re

import pytest

from rnnorm.experiments.models.generation_training import LastSteps
from rnnorm.experiments.recipe.recipe import read_recipe, recipe_names
from rnnorm.experiments.recipe.table import recipe_table

NUMBERS = {
    "cooijmans2016/smnist-lstm": 98.9,
    "cooijmans2016/smnist-bn": 99.0,
    "cooijmans2016/pmnist-lstm": 90.2,
    "cooijmans2016/pmnist-bn": 95.4,
    "cooijmans2016/ptb-char-lstm": 1.38,
    "cooijmans2016/ptb-char-bn": 1.32,
    "cooijmans2016/text8-lstm": 1.43,
    "cooijmans2016/text8-bn": 1.36,
    "cooijmans2016/cnn-lstm": 50.3,
    "cooijmans2016/cnn-bn": 49.5,
    "cooijmans2016/cnn-bn-everywhere": 50.0,
    "cooijmans2016/cnn-bn-e1": 47.1,
    "cooijmans2016/cnn-bn-e2": 43.9,
    "cooijmans2016/cnn-full-lstm": 45.5,
    "cooijmans2016/cnn-full-bn-e2": 37.9,
    "laurent2015/ptb-word-small-lstm": 119.2,
    "laurent2015/ptb-word-small-bn": 120.9,
    "laurent2015/ptb-word-medium-lstm": 89.0,
    "laurent2015/ptb-word-medium-bn": 90.6,
    "laurent2015/ptb-word-large-lstm": 81.8,
    "laurent2015/ptb-word-large-bn": 97.4,
    "laurent2015/appendix-a-rnn": 1.10,
    "laurent2015/appendix-a-bn": 1.11,
    "koutnik2014/ptb-char-clockwork": 1.46,
    "krueger2015/ptb-char-norm-stabilizer": 1.48,
    "krueger2016/ptb-char-zoneout": 1.297,
    "semeniuta2016/ptb-char": 1.382,
    "wu2016/ptb-char-mi-rnn": 1.39,
    "le2015/smnist-rnn": 35.0,
    "le2015/smnist-irnn": 97.0,
    "le2015/pmnist-rnn": 35.0,
    "le2015/pmnist-irnn": 82.0,
    "chung2016/ptb-char-hm-lstm-sampling": 1.3,
    "chung2016/ptb-char-hm-lstm-soft": 1.29,
    "chung2016/ptb-char-hm-lstm-step": 1.28,
    "chung2016/ptb-char-hm-lstm-annealed": 1.27,
}
# units, predictions of a window, rows, rate, and what else of the optimiser
CHARACTERS = {
    "ptb-char-lstm": (1000, 100, 64, {"lr": 0.002}),
    "ptb-char-lstm-draft": (1000, 50, 100, {"lr": 0.001, "momentum": 0.9}),
    "text8-lstm": (2000, 180, 128, {"lr": 0.001}),
}
# units, bound of the weights, dropout, predictions, clip, epochs, epochs of the first rate, divisor
WORDS = {
    "small": (200, 0.1, 0.0, 20, 10, 15, 6, 2.0),
    "medium": (650, 0.05, 0.5, 35, 5, 40, 6, 1.2),
    "large": (1500, 0.04, 0.65, 35, 5, 55, 15, 1.15),
}


def test_the_papers_numbers():
    lines = {line.partition(" ")[0]: line for line in recipe_table().splitlines()}
    for name, number in NUMBERS.items():
        assert read_recipe(name).about["number"] == number, name
        assert str(number) in lines[name]


def test_other_recipes_have_a_papers_number_only_if_it_is_of_their_setting():
    # the released code made the paper's numbers; the other papers have each of these rows
    named = re.compile(r"cooijmans2016/.*-(released|floored)|glinskis2017/|laurent2015/wsj-")
    for name in recipe_names():
        if read_recipe(name).about.get("number") is not None and name not in NUMBERS:
            assert named.match(name), name


@pytest.mark.parametrize("name", [n for n in NUMBERS if "cooijmans2016" in n and "mnist" in n])
def test_the_papers_settings_for_pixels(name):
    config = read_recipe(name).config
    assert config["trainer"]["gradient_clip_val"] == 1
    assert config["optimizer"]["class_path"] == "torch.optim.RMSprop"
    assert config["optimizer"]["init_args"]["lr"] == 0.001
    assert config["optimizer"]["init_args"]["alpha"] == 0.9
    data = config["data"]["init_args"]
    permuted = "pmnist" in name
    assert data["permutation"] == ("fixed" if permuted else "none")
    model = config["model"]["init_args"]
    # as in the released code: black borders come first in the image's own order alone
    assert model["initial_noise"] == (0.1 if name.endswith("smnist-bn") else 0)
    assert (model["init"], model["learn_initial_state"]) == ("cooijmans2016", True)
    assert data["batch_size"] == model["hidden_size"] == 100


@pytest.mark.parametrize("order", ["smnist", "pmnist"])
def test_the_released_codes_settings_for_pixels(order):
    plain, normalised = (
        read_recipe(f"cooijmans2016/{order}-{norm}-released").config for norm in ("lstm", "bn")
    )
    assert plain["optimizer"]["init_args"] == {"lr": 0.001, "alpha": 0.5}
    permutation = {"smnist": "none", "pmnist": "published"}[order]
    assert plain["data"]["init_args"]["permutation"] == permutation
    for key in ("data", "optimizer"):
        assert plain[key] == normalised[key]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_states_its_noise(name):
    assert read_recipe(name).config["model"]["init_args"]["initial_noise"] in (0, 0.1)


@pytest.mark.parametrize(("name", "settings"), CHARACTERS.items())
def test_the_papers_settings_for_characters(name, settings):
    config = read_recipe(f"cooijmans2016/{name}").config
    model, data = (config[part]["init_args"] for part in ("model", "data"))
    optimizer = config["optimizer"]["init_args"]
    got = (model["hidden_size"], data["length"], data["batch_size"], optimizer)
    assert got == settings
    assert config["trainer"]["gradient_clip_val"] == 1
    assert config["trainer"]["max_epochs"] == 50
    assert (model["init"], model["forget_bias"]) == ("joint_orthogonal", 1)
    assert data["crop"] == (not name.endswith("-draft"))
    assert data["test_by"] == "stream"


@pytest.mark.parametrize(("size", "settings"), WORDS.items())
def test_the_papers_settings_for_words(size, settings):
    config = read_recipe(f"laurent2015/ptb-word-{size}-lstm").config
    model, data = (config[part]["init_args"] for part in ("model", "data"))
    trainer, schedule = config["trainer"], config["lr_scheduler"]["init_args"]
    got = (
        *(model[key] for key in ("hidden_size", "init_range", "dropout")),
        data["length"],
        *(trainer[key] for key in ("gradient_clip_val", "max_epochs")),
        *schedule.values(),
    )
    assert got == settings
    assert (model["num_layers"], model["reduction"]) == (2, "sum")
    assert (data["windows"], data["batch_size"]) == ("carried", 32)
    assert config["optimizer"]["init_args"] == {"lr": 1.0}


def test_the_papers_settings_for_speech():
    plain, normalised = (read_recipe(f"laurent2015/wsj-{name}") for name in ("lstm", "bn"))
    assert (plain.about["number"], normalised.about["number"]) == (33, 34)
    model, data = (plain.config[part]["init_args"] for part in ("model", "data"))
    assert (model["num_layers"], model["hidden_size"], model["bidirectional"]) == (5, 250, True)
    assert (model["input_size"], model["num_classes"], model["init"]) == (123, 3546, "laurent2015")
    assert model["cell_options"] == {"peephole": "output"}
    assert (data["max_length"], data["batch_size"]) == (1300, 24)
    assert plain.config["optimizer"]["class_path"] == "torch.optim.SGD"
    assert plain.config["optimizer"]["init_args"] == {"lr": 1e-4, "momentum": 0.9}
    assert normalised.config["model"]["init_args"]["norm"] == "laurent2015-sequence"


PLAIN = {
    name: name.replace("ba2016", paper).replace("-ln", "-rnn" if "appendix" in name else "-lstm")
    for name in recipe_names()
    if name.startswith("ba2016/") and "glinskis" not in name
    for paper in ["laurent2015" if "word" in name or "appendix" in name else "cooijmans2016"]
} | {"ba2016/glinskis-ln": "glinskis2017/baseline"}


@pytest.mark.parametrize(("twin", "plain"), PLAIN.items())
def test_a_layer_norm_twin_differs_in_the_norm_alone(twin, plain):
    one, two = read_recipe(twin), read_recipe(plain)
    if "mnist" in twin:
        # a row of black pixels has no variance over its units
        noise = [r.config["model"]["init_args"].pop("initial_noise") for r in (one, two)]
        assert noise == [0.1, 0]
    assert one.config["model"]["init_args"].pop("norm") == "layer"
    assert two.config["model"]["init_args"].pop("norm") is None
    assert one.config == two.config
    assert one.about["metric"] == two.about["metric"]
    assert one.about["number"] is None


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NUMBERS
        if name.endswith(("-lstm", "-rnn")) and not name.startswith(("le2015/", "wu2016/"))
        if "/cnn-" not in name
    ],
)
def test_every_plain_recipe_has_a_layer_norm_twin(name):
    assert name in PLAIN.values()


def test_the_setting_of_figure_3_is_the_same_with_and_without_the_norm():
    one, two = (read_recipe(f"laurent2015/appendix-a-{name}-figure3") for name in ("rnn", "bn"))
    assert one.config["optimizer"] == two.config["optimizer"]
    assert one.config["optimizer"]["init_args"] == {"lr": 7.8e-4, "momentum": 0.5}
    assert one.config["data"] == two.config["data"]
    assert one.config["data"]["init_args"]["batch_size"] == 64


# units, sentences, rows, rate, both directions, attention normalised
CLOZE = {
    "cnn-lstm": (240, 4, 64, 8e-5, False, False),
    "cnn-bn": (240, 4, 64, 8e-5, False, False),
    "cnn-bn-everywhere": (240, 4, 64, 8e-5, False, True),
    "cnn-bn-e1": (240, 4, 40, 8e-4, False, True),
    "cnn-bn-e2": (240, 4, 40, 8e-4, True, True),
    "cnn-full-lstm": (120, None, 40, 8e-4, True, False),
    "cnn-full-bn-e2": (120, None, 40, 8e-4, True, True),
}


@pytest.mark.parametrize(("name", "settings"), CLOZE.items())
def test_the_papers_settings_for_questions(name, settings):
    config = read_recipe(f"cooijmans2016/{name}").config
    model, data = (config[part]["init_args"] for part in ("model", "data"))
    got = (
        model["hidden_size"],
        data["sentences"],
        data["batch_size"],
        config["optimizer"]["init_args"]["lr"],
        model["bidirectional"],
        model["attention_norm"],
    )
    assert got == settings
    assert config["optimizer"]["class_path"] == "torch.optim.Adam"
    assert config["trainer"]["gradient_clip_val"] == 10
    assert model["vocabulary_size"] == data["words"] + 1 + data["placeholders"] == 65829
    assert model["norm"] == (None if "lstm" in name else "batch")
    scope = "sequence" if "-e1" in name or "-e2" in name else None
    assert (model.get("norm_options") or {}).get("input") == scope


@pytest.mark.parametrize("way", ["e2e", "mixer"])
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_a_training_comes_to_the_steps_that_are_left_to_the_model(way, scale):
    config = read_recipe(f"translation/multi30k-{way}", scale).config
    given = config["model"]["init_args"]["training_options"]
    last = config["trainer"]["max_epochs"] - 1
    assert LastSteps(*(given[name] for name in ("first", "steps", "every"))).tail(last) > 0
