"""Recipes that are compared differ in one thing alone."""

import pytest

from rnnorm.experiments.recipe.recipe import read_recipe

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
    + [f"laurent2015/ptb-word-{size}-lstm" for size in ("small", "medium", "large")],
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


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("order", ["pmnist", "smnist"])
def test_recipes_of_the_gamma_sweep_differ_in_gamma_alone(order, gamma):
    swept = read_recipe(f"cooijmans2016/{order}-bn-gamma-{gamma}")
    usual = read_recipe(f"cooijmans2016/{order}-bn")
    assert swept.config["model"]["init_args"]["norm_options"].pop("gamma") == gamma
    assert swept.config == usual.config
    assert swept.about["number"] is None
    assert "gamma" not in usual.config["model"]["init_args"]["norm_options"]


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
