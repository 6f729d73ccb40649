import importlib
import re
from argparse import ArgumentError
from pathlib import Path

import pytest
import torch
import yaml

from rnnorm.experiments.models.generation_training import LastSteps
from rnnorm.experiments.recipe.recipe import read_recipe, recipe_names
from rnnorm.experiments.recipe.table import recipe_table
from rnnorm.experiments.searching.trial import space_of
from rnnorm.experiments.training.build import Experiment

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


@pytest.fixture(scope="module")
def parser():
    """What LightningCLI reads recipes with: one for all, since making it takes the longest."""
    return Experiment(read_recipe("demo/digits-lstm").config).parser


def made(config, part):
    """A recipe's model or data, without numbers: thousands of units take long to initialise."""
    module, _, name = config[part]["class_path"].rpartition(".")
    with torch.device("meta"):
        return getattr(importlib.import_module(module), name)(**config[part]["init_args"])


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_says_what_it_is(name, parser):
    recipe = read_recipe(name)
    assert {"title", "paper", "metric"} <= recipe.about.keys()
    parser.parse_string(yaml.safe_dump(recipe.config))
    for part in ("model", "data"):
        assert made(recipe.config, part)


def test_a_recipe_that_is_not_valid_is_told(parser):
    config = read_recipe("cooijmans2016/ptb-char-bn").config
    for part, name, value in (
        ("model", "hidden_sizes", 3),
        ("model", "hidden_size", "many"),
        ("data", "rows", 3),
        ("optimizer", "rate", 3),
    ):
        other = {**config[part], "init_args": {**config[part]["init_args"], name: value}}
        with pytest.raises(ArgumentError, match=name):
            parser.parse_string(yaml.safe_dump(config | {part: other}))
    with pytest.raises(ArgumentError, match="max_epoch"):
        parser.parse_string(yaml.safe_dump(config | {"trainer": {"max_epoch": 3}}))


@pytest.mark.parametrize("name", [n for n in recipe_names() if not n.startswith("demo/")])
def test_every_recipe_of_a_paper_has_a_small_scale(name):
    paper, small = read_recipe(name), read_recipe(name, "small")
    assert small.about["small"]
    assert small.config["trainer"]["max_epochs"] < paper.config["trainer"]["max_epochs"]
    assert small.config["trainer"].keys() == paper.config["trainer"].keys()
    assert small.config["optimizer"] == paper.config["optimizer"]
    for part in ("model", "data"):
        assert made(small.config, part)


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


DIGITS = [f"laurent2015/digits{split}" for split in ("", "-both")]


@pytest.mark.parametrize("digits", DIGITS)
def test_recipes_of_spoken_digits_differ_in_the_norm_and_the_learning_rate_alone(digits):
    recipes = [read_recipe(f"{digits}-{name}") for name in ("lstm", "bn", "bn-frame")]
    for recipe in recipes:
        recipe.config["trainer"].pop("callbacks", None)
        # the norm by itself, or with options of it
        recipe.config["model"]["init_args"].pop("norm_options", None)
    norms = [recipe.config["model"]["init_args"].pop("norm") for recipe in recipes]
    assert norms == [None, "laurent2015-sequence", "laurent2015-frame"]
    rates = [recipe.config["optimizer"]["init_args"].pop("lr") for recipe in recipes]
    assert rates == [1e-4, 1e-3, 1e-3]
    assert recipes[0].config == recipes[1].config == recipes[2].config
    assert recipes[0].search == recipes[1].search == recipes[2].search
    assert recipes[0].search["space"].keys() == {"optimizer.init_args.lr"}


@pytest.mark.parametrize(
    "plain",
    ["cooijmans2016/ptb-char-lstm", "cooijmans2016/ptb-char-lstm-draft", "cooijmans2016/text8-lstm"]
    + [f"laurent2015/ptb-word-{size}-lstm" for size in WORDS],
)
def test_plain_and_normalised_recipes_differ_in_the_norm_alone(plain):
    configs = [read_recipe(name).config for name in (plain, plain.replace("-lstm", "-bn"))]
    for config in configs:
        config["trainer"].pop("callbacks", None)
        config["model"]["init_args"].pop("norm_options", None)
    norms = [config["model"]["init_args"].pop("norm") for config in configs]
    assert norms[0] is None
    assert norms[1] in ("batch", "laurent2015-frame")
    assert configs[0] == configs[1]


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


JOINT = {"norm_options": {"input": None, "recurrent": None, "joint": "frame"}}
FLOORED = {
    "class_path": "rnnorm.experiments.training.optimizer.FlooredRMSprop",
    "init_args": {"lr": 0.001, "alpha": 0.9, "floor": 1e-5},
}
DECAY = {"init_args": {"alpha": 0.9, "momentum": 0.0}}
ONE_CHANGE = {
    "demo/digits-joint": ("demo/digits-bn", "model", {"init_args": JOINT}),
    "demo/digits-joint-no-cell": ("demo/digits-joint", "model", {"cell": None}),
    "demo/digits-bn-no-cell": ("demo/digits-bn", "model", {"cell": None}),
    "demo/digits-bn-gamma-1.0": ("demo/digits-bn", "model", {"gamma": 1.0}),
    "demo/digits-joint-gamma-1.0": ("demo/digits-joint", "model", {"gamma": 1.0}),
    "glinskis2017/separate-joint": ("glinskis2017/separate", "model", {"init_args": JOINT}),
    "glinskis2017/separate-no-cell": ("glinskis2017/separate", "model", {"cell": None}),
    "glinskis2017/separate-gamma-1.0": ("glinskis2017/separate", "model", {"gamma": 1.0}),
    "glinskis2017/separate-min-rows-16": ("glinskis2017/separate", "model", {"min_rows": 16}),
    "cooijmans2016/smnist-lstm-floored": ("cooijmans2016/smnist-lstm", "optimizer", FLOORED),
    "cooijmans2016/smnist-bn-floored": ("cooijmans2016/smnist-bn", "optimizer", FLOORED),
    **{
        f"cooijmans2016/ptb-char-{norm}-draft-decay": (
            *(f"cooijmans2016/ptb-char-{norm}-draft", "optimizer", DECAY),
        )
        for norm in ("lstm", "bn")
    },
    **{
        f"cooijmans2016/{order}-bn-identity": (
            *(f"cooijmans2016/{order}-bn", "model"),
            {"init_args": {"init": "cooijmans2016_draft"}},
        )
        for order in ("smnist", "pmnist")
    },
}


@pytest.mark.parametrize("name", ONE_CHANGE)
def test_recipes_that_show_one_thing_differ_in_it_alone(name):
    base, part, change = ONE_CHANGE[name]
    one, two = read_recipe(name).config, read_recipe(base).config
    if not change.keys() & {"init_args", "class_path"}:
        change = {"init_args": {"norm_options": change}}
    expected = two | {part: merged(two[part], change)}
    assert one == expected


def merged(base, change):
    if not isinstance(base, dict) or "class_path" in change:
        return change
    return base | {key: merged(base.get(key), value) for key, value in change.items()}


def test_the_setting_of_figure_3_is_the_same_with_and_without_the_norm():
    one, two = (read_recipe(f"laurent2015/appendix-a-{name}-figure3") for name in ("rnn", "bn"))
    assert one.config["optimizer"] == two.config["optimizer"]
    assert one.config["optimizer"]["init_args"] == {"lr": 7.8e-4, "momentum": 0.5}
    assert one.config["data"] == two.config["data"]
    assert one.config["data"]["init_args"]["batch_size"] == 64


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("order", ["pmnist", "smnist"])
def test_recipes_of_the_gamma_sweep_differ_in_gamma_alone(order, gamma):
    swept = read_recipe(f"cooijmans2016/{order}-bn-gamma-{gamma}")
    usual = read_recipe(f"cooijmans2016/{order}-bn")
    assert swept.config["model"]["init_args"]["norm_options"].pop("gamma") == gamma
    assert swept.config == usual.config
    assert swept.about["number"] is None
    assert "gamma" not in usual.config["model"]["init_args"]["norm_options"]


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


@pytest.mark.parametrize("data", ["babi", "chinese"])
def test_the_variants_of_other_questions_differ_in_what_is_normalised_alone(data):
    names = ("lstm", "bn", "bn-everywhere", "bn-e1", "bn-e2")
    configs = [read_recipe(f"cooijmans2016/{data}-{name}").config for name in names]
    looks = []
    for config in configs:
        config["trainer"].pop("callbacks", None)
        model = config["model"]["init_args"]
        options = model.pop("norm_options", {})
        keys = ("norm", "attention_norm", "bidirectional")
        looks.append((*(model.pop(key) for key in keys), options.get("input")))
    assert all(config == configs[0] for config in configs)
    assert looks == [
        (None, False, False, None),
        ("batch", False, False, None),
        ("batch", True, False, None),
        ("batch", True, False, "sequence"),
        ("batch", True, True, "sequence"),
    ]


def own(path, text):
    path.write_text(text)
    return str(path)


def test_a_recipe_is_its_base_and_what_differs(tmp_path):
    name = own(
        tmp_path / "own.yaml",
        "base: cooijmans2016/pmnist-bn\nabout: {title: mine}\n"
        "small: {trainer: {max_epochs: 2}}\n"
        "model: {init_args: {norm_options: {gamma: 0.2}}}\ntrainer: {callbacks: []}\n",
    )
    base = read_recipe("cooijmans2016/pmnist-bn")
    mine = read_recipe(name)
    assert mine.about == base.about | {"title": "mine"}
    options = {"momentum": 0.01, "gamma": 0.2}
    model = base.config["model"]["init_args"] | {"norm_options": options}
    assert mine.config["model"]["init_args"] == model
    assert mine.config["trainer"] == base.config["trainer"] | {"callbacks": []}
    assert mine.config["data"] == base.config["data"]
    assert "base" not in mine.config
    small = read_recipe(name, "small")
    assert small.config["trainer"]["max_epochs"] == 2
    assert small.config["data"]["init_args"]["shrink"] == 2


def test_another_class_takes_no_arguments_of_the_base(tmp_path):
    optimizer = "{class_path: torch.optim.SGD, init_args: {lr: 0.1}}"
    name = own(tmp_path / "own.yaml", f"base: demo/digits-bn\noptimizer: {optimizer}\n")
    assert read_recipe(name).config["optimizer"]["init_args"] == {"lr": 0.1}
    same = read_recipe("demo/digits-bn").config["optimizer"]
    kept = f"{{class_path: {same['class_path']}, init_args: {{lr: 0.1}}}}"
    name = own(tmp_path / "own.yaml", f"base: demo/digits-bn\noptimizer: {kept}\n")
    assert read_recipe(name).config["optimizer"]["init_args"] == same["init_args"] | {"lr": 0.1}


@pytest.mark.parametrize("norm", ["none", "None", "null"])
def test_no_norm_is_told_on_the_command_line(norm):
    config = read_recipe("demo/digits-bn").config
    assert Experiment(config, [f"--model.norm={norm}"]).model.hparams["norm"] is None


def test_a_base_lies_beside_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    own(tmp_path / "net.yaml", "base: demo/digits-bn\nabout: {title: net}\n")
    name = own(tmp_path / "folder" / "mine.yaml", "base: ../net.yaml\n")
    monkeypatch.chdir("/")
    assert read_recipe(name).about["title"] == "net"


def test_a_base_that_is_none_is_refused(tmp_path):
    name = own(tmp_path / "own.yaml", "base: cooijmans2016/pmnist-bm\n")
    with pytest.raises(ValueError, match="no recipe is called 'cooijmans2016/pmnist-bm'"):
        read_recipe(name)
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    own(one, f"base: {two}\n")
    own(two, f"base: {one}\n")
    with pytest.raises(ValueError, match=r"is based on itself: .*one\.yaml on .*two\.yaml on "):
        read_recipe(str(one))
    own(one, f"base: ../{tmp_path.name}/one.yaml\n")
    with pytest.raises(ValueError, match="is based on itself"):
        read_recipe(str(one))


TWINS = {
    "koutnik2014/ptb-char-clockwork": {"cell", "cell_options", "forget_bias"},
    "krueger2015/ptb-char-norm-stabilizer": {
        *("cell", "cell_options", "forget_bias", "init", "norm_stabilizer"),
    },
    "krueger2016/ptb-char-zoneout": {"recurrent_dropout", "recurrent_dropout_options"},
    "semeniuta2016/ptb-char": {"recurrent_dropout", "recurrent_dropout_options"},
    "gal2016/ptb-char": {"recurrent_dropout", "recurrent_dropout_options"},
    "salimans2016/ptb-char": {"weight_norm"},
}


@pytest.mark.parametrize(("name", "options"), TWINS.items())
def test_cells_and_regularisers_differ_from_the_lstm_in_themselves_alone(name, options):
    one, plain = read_recipe(name).config, read_recipe("cooijmans2016/ptb-char-lstm").config
    given, usual = one["model"].pop("init_args"), plain["model"].pop("init_args")
    assert one == plain
    assert {key for key in given | usual if given.get(key, ()) != usual.get(key, ())} == options


@pytest.mark.parametrize("way", ["e2e", "mixer"])
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_a_training_comes_to_the_steps_that_are_left_to_the_model(way, scale):
    config = read_recipe(f"translation/multi30k-{way}", scale).config
    given = config["model"]["init_args"]["training_options"]
    last = config["trainer"]["max_epochs"] - 1
    assert LastSteps(*(given[name] for name in ("first", "steps", "every"))).tail(last) > 0


def test_zoneout_with_batch_norm_is_both():
    both, bn, zoneout = (
        read_recipe(name).config
        for name in (
            *("krueger2016/ptb-char-zoneout-bn", "cooijmans2016/ptb-char-bn"),
            "krueger2016/ptb-char-zoneout",
        )
    )
    assert both["model"]["init_args"] == bn["model"]["init_args"] | zoneout["model"][
        "init_args"
    ] | {key: bn["model"]["init_args"][key] for key in ("norm", "norm_options")}
    assert both["trainer"] == bn["trainer"]


def test_recipes_of_boundaries_differ_in_the_boundary_alone():
    kinds = ("step", "annealed", "soft", "sampling")
    configs = [read_recipe(f"chung2016/ptb-char-hm-lstm-{kind}").config for kind in kinds]
    found = [config["model"]["init_args"].pop("cell_options")["boundary"] for config in configs]
    assert found == ["step", "step", "soft", "sample"]
    callbacks = [config["trainer"].pop("callbacks", None) for config in configs]
    assert [c and c[0]["class_path"] for c in callbacks] == [
        *(None, "rnnorm.lightning.SlopeAnnealing", None, None)
    ]
    assert all(config == configs[0] for config in configs)
    model, data = (configs[0][part]["init_args"] for part in ("model", "data"))
    assert (model["num_layers"], model["hidden_size"]) == (3, 512)
    assert (data["length"], data["batch_size"], data["windows"]) == (100, 64, "carried")


def test_a_slope_that_reaches_5_differs_in_its_rate_alone():
    names = ("chung2016/ptb-char-hm-lstm-annealed-to-5", "chung2016/ptb-char-hm-lstm-annealed")
    for scale in ("paper", "small"):
        one, two = (read_recipe(name, scale).config for name in names)
        (callback,) = one["trainer"].pop("callbacks")
        assert callback["class_path"] == two["trainer"].pop("callbacks")[0]["class_path"]
        assert one == two
        # the slope of the last epoch, counted from 0
        assert 1 + callback["init_args"]["rate"] * (one["trainer"]["max_epochs"] - 1) >= 5


def test_the_recipe_of_given_boundaries_differs_in_them_alone():
    one, two = (
        read_recipe(f"chung2016/ptb-char-hm-lstm-{name}").config for name in ("given", "step")
    )
    given = one["model"]["init_args"]
    assert given.pop("boundaries") == [["_"], ["\n"]]
    assert given.pop("cell_options") == {"boundary": "given"}
    two["model"]["init_args"].pop("cell_options")
    assert one == two


def test_recipes_of_initial_states_differ_in_them_alone():
    names = ("", "-from-input", "-no-noise")
    configs = [read_recipe(f"cooijmans2016/smnist-bn{name}").config for name in names]
    keys = ("initial_noise", "learn_initial_state")
    states = [tuple(c["model"]["init_args"].pop(key) for key in keys) for c in configs]
    assert states == [(0.1, True), (0, "from_input"), (0, True)]
    assert configs[0] == configs[1] == configs[2]


def test_models_of_the_demo_differ_in_the_norm_and_its_noise_alone():
    configs = [read_recipe(f"demo/digits-{n}").config for n in ("lstm", "bn", "ln")]
    keys = ("norm", "initial_noise")
    norms = [tuple(c["model"]["init_args"].pop(key) for key in keys) for c in configs]
    assert norms == [(None, 0), ("batch", 0.1), ("layer", 0)]
    assert configs[0] == configs[1] == configs[2]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cooijmans2016/pmnist-bm", "cooijmans2016/pmnist-bn"),
        ("pmnist-bn", "cooijmans2016/pmnist-bn"),
        ("zzz", "rnnorm recipes lists them"),
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


@pytest.mark.parametrize("short", [True, False])
def test_a_path_is_a_value_whatever_it_looks_like(short):
    data = "rnnorm.experiments.tasks.pixels.PixelData"
    model = "rnnorm.experiments.tasks.pixels.PixelClassifier"
    config = {"model": model, "data": data if short else {"class_path": data}}
    for path, kept in (("a: b", Path("a: b").resolve()), ("~/c", Path.home() / "c")):
        experiment = Experiment(config, [f"--data.data_dir={path}"])
        assert experiment.datamodule.hparams["data_dir"] == str(kept)
    none = Experiment(config, ["--data.data_dir=a", "--data.init_args.data_dir=null"])
    assert none.datamodule.hparams["data_dir"] is None


def test_one_seed_for_weights_and_data():
    experiment = Experiment(read_recipe("demo/digits-bn").config, ["--seed_everything=7"])
    assert experiment.datamodule.hparams["seed"] == 7


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("about: 5", "about must be keys and values, got 5"),
        ("about: {number: much}", "about.number must be a number, got 'much'"),
        ("about: {metric: 5}", "about.metric must be str, got 5"),
        ("about: {number: 5}", "about.number is given, and about lacks metric"),
        ("small: [1]", r"small must be keys and values, got \[1\]"),
        ("small: {model: {}}", "small lacks note"),
        ("search: all", "search must be keys and values, got 'all'"),
        ("search: {trials: 3}", "search lacks space"),
        ("search: {trials: many, space: {}}", "search.trials must be int, got 'many'"),
        ("base: [a]", r"base must be the name of a recipe, got \['a'\]"),
        ("trainer:", "trainer must be keys and values, got None"),
        ("model: 5", "model must be keys and values, got 5"),
        ("data: {init_args: 5}", "data.init_args must be keys and values, got 5"),
        ("trainer: {logger: true}", "trainer.logger has no effect"),
        ("data: {init_args: {seed: 7}}", "data.init_args.seed is the seed of the weights too"),
    ],
)
def test_keys_of_another_type_are_named(tmp_path, text, what):
    path = tmp_path / "own.yaml"
    path.write_text(f"model: {{}}\ndata: {{}}\n{text}\n")
    with pytest.raises(ValueError, match=rf"own\.yaml: {what}"):
        read_recipe(str(path))


def test_a_part_of_another_type_at_the_small_scale_is_named(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("model: {}\ndata: {}\nsmall: {note: less, model: 5}\n")
    with pytest.raises(ValueError, match=r"own\.yaml: model must be keys and values, got 5"):
        read_recipe(str(path), "small")


def test_a_run_s_configuration_is_a_recipe(tmp_path):
    path = tmp_path / "own.yaml"
    experiment = Experiment(read_recipe("demo/digits-bn").config, ["--seed_everything=7"])
    path.write_text(experiment.as_yaml())
    assert Experiment(read_recipe(str(path)).config).datamodule.hparams["seed"] == 7


@pytest.mark.parametrize("empty", ["model", "data"])
def test_a_key_without_a_value_is_missing(tmp_path, empty):
    path = tmp_path / "own.yaml"
    path.write_text(f"base: demo/digits-bn\n{empty}:\n")
    with pytest.raises(ValueError, match=r"own\.yaml is no recipe: it needs the keys 'model' and"):
        read_recipe(str(path))


def test_a_recipe_that_says_nothing_about_itself(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("about:\nmodel: {}\ndata: {}\n")
    assert read_recipe(str(path)).about == {}


@pytest.mark.parametrize(
    ("text", "number"), [("1e-4", 1e-4), ("1E-3", 1e-3), (".5e-2", 5e-3), ("+1e-3", 1e-3)]
)
def test_a_number_is_the_same_wherever_it_stands(tmp_path, text, number):
    path = tmp_path / "own.yaml"
    path.write_text(
        f"base: demo/digits-bn\nabout: {{metric: loss, number: {text}}}\n"
        f"search: {{trials: 1, space: {{optimizer.lr: {{low: {text}, high: 1e1}}}}}}\n"
        f"model: {{init_args: {{norm: batch, norm_options: {{eps: {text}}}}}}}\n"
    )
    recipe = read_recipe(str(path))
    assert recipe.about["number"] == number
    assert space_of(recipe.search["space"])["optimizer.lr"].low == number
    options = [f"--optimizer.lr={text}", f"--model.norm_options.gamma={text}"]
    whole = Experiment(recipe.config, options).as_dict()
    assert whole["optimizer"]["init_args"]["lr"] == number
    given = {"eps": number, "gamma": number}
    assert whole["model"]["init_args"]["norm_options"] == given
    # as a run folder keeps it
    assert Experiment(whole).as_dict() == whole


@pytest.mark.parametrize("text", ["1:30", "0b11", "1e", "'64'x"])
def test_text_is_no_number_on_the_command_line_either(text):
    with pytest.raises(ValueError, match=f'"batch_size": Expected a .*int.*{text}'):
        Experiment(read_recipe("demo/digits-bn").config, [f"--data.batch_size={text}"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--data.batch_size=null", r"data\.init_args\.batch_size must be of type int, got null"),
        (f"--data.batch_size={'9' * 20}", r"data\.init_args\.batch_size must be from .*, got 9"),
        ("--optimizer.lr=.nan", r"optimizer\.init_args\.lr must be a finite number, got nan"),
        ("--optimizer.lr=null", r"optimizer\.init_args\.lr must be .*, got null"),
        ("--model.hidden_size=0", "hidden_size must be at least 1, got 0"),
        ("--model.num_classes=-1", "num_classes must be at least 0, got -1"),
        (f"--trainer.max_epochs={'9' * 20}", r"trainer\.max_epochs must be from .*, got 9"),
        (f"--trainer.devices={'9' * 20}", r"trainer\.devices must be from .*, got 9"),
        ("--model.norm_options.eps=.inf", r"norm_options\.eps must be a finite number, got inf"),
    ],
)
def test_values_of_no_sense_are_refused_by_name(option, said):
    with pytest.raises(ValueError, match=said):
        Experiment(read_recipe("demo/digits-bn").config, ["--model.norm=batch", option])


@pytest.mark.parametrize("option", ["--model.norm=null", "--trainer.precision=null"])
def test_null_is_taken_where_a_signature_has_none(option):
    assert Experiment(read_recipe("demo/digits-bn").config, [option]).model


def test_what_a_schedule_refuses_names_it():
    name = "rnnorm.experiments.training.schedule.DecayAfter"
    option = f"--lr_scheduler={{class_path: {name}, init_args: {{epochs: 0, divisor: 2}}}}"
    with pytest.raises(ValueError, match=r"^optimizer or lr_scheduler cannot be made: epochs and"):
        Experiment(read_recipe("demo/digits-bn").config, [option])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("about: {metric: loss, number: .nan}", r"about\.number must be a finite number, got nan"),
        ("about: {metric: loss, number: true}", r"about\.number must be a number, got True"),
        ("search: {trials: true, space: {}}", r"search\.trials must be int, got True"),
    ],
)
def test_numbers_of_no_sense_in_a_recipes_own_keys_are_refused(tmp_path, text, said):
    path = tmp_path / "own.yaml"
    path.write_text(f"base: demo/digits-bn\n{text}\n")
    with pytest.raises(ValueError, match=said):
        read_recipe(str(path))


@pytest.mark.parametrize("low", [True, None, float("nan"), -float("inf"), "text", 10**400])
def test_a_range_has_finite_ends(low):
    with pytest.raises(ValueError, match=r"search\.space\.lr: "):
        space_of({"lr": {"low": low, "high": 1}})
