"""How a recipe is read: its base, its keys, and the values that are refused."""

import importlib
from argparse import ArgumentError
from pathlib import Path

import pytest
import torch
import yaml

from rnnorm.experiments.recipe.recipe import read_recipe, recipe_names
from rnnorm.experiments.searching.trial import space_of
from rnnorm.experiments.training.build import Experiment


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


def searched(base, space):
    """The text of a recipe with a search of two trials."""
    return yaml.safe_dump({"base": base, "search": {"trials": 2, "space": space}})


def test_a_range_of_another_kind_takes_nothing_of_the_base(tmp_path):
    size, rate = "model.init_args.hidden_size", "optimizer.init_args.lr"
    choices, ends = {"choices": [8, 12]}, {"low": 0.1, "high": 1.0, "log": True}
    own(tmp_path / "base.yaml", searched("demo/digits-bn", {size: choices, rate: ends}))
    swapped = {size: {"low": 8, "high": 12}, rate: {"choices": [0.1, 1.0]}}
    name = own(tmp_path / "own.yaml", searched("base.yaml", swapped))
    assert read_recipe(name).search["space"] == swapped
    # an end alone is changed within the range
    name = own(tmp_path / "own.yaml", searched("base.yaml", {rate: {"high": 2.0}}))
    assert read_recipe(name).search["space"] == {size: choices, rate: ends | {"high": 2.0}}


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
        ("about: {titel: digits}", "about has no 'titel': it takes title, paper, metric"),
        ("search: {trails: 3}", "search has no 'trails': it takes trials, space"),
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
    with pytest.raises(
        ValueError, match=r"own\.yaml is not a recipe: it needs the keys 'model' and"
    ):
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


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["={gamma: 0.3}", ".cell=null"], {"gamma": 0.3, "cell": None}),
        ([".cell=null", "={gamma: 0.3}"], {"gamma": 0.3}),
        ([".gamma=0.3", "=null", ".eps=0.1"], {"eps": 0.1}),
    ],
)
def test_whole_and_single_options_count_in_their_order(given, found):
    options = [f"--model.norm_options{each}" for each in given]
    whole = Experiment(read_recipe("demo/digits-bn").config, options).as_dict()
    assert whole["model"]["init_args"]["norm_options"] == found


def test_a_single_option_needs_a_mapping_of_options():
    options = ["--model.norm_options=3", "--model.norm_options.gamma=0.1"]
    with pytest.raises(ValueError, match=r"gamma=0\.1 needs norm_options to be a mapping, got 3"):
        Experiment(read_recipe("demo/digits-bn").config, options)


@pytest.mark.parametrize("text", ["1:30", "0b11", "1e", "'64'x"])
def test_text_is_no_number_on_the_command_line_either(text):
    with pytest.raises(ValueError, match=f'"batch_size": Expected a .*int.*{text}'):
        Experiment(read_recipe("demo/digits-bn").config, [f"--data.batch_size={text}"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--data=null", r"data must name the class of a data set, got null"),
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


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("ModelPruning", "pruning_fn", "l1_unstructured"), ("Timer", "interval", "step")],
)
def test_a_configuration_reads_back(name, key, value):
    overrides = [f"--trainer.callbacks+={name}", f"--trainer.callbacks.{key}={value}"]
    whole = Experiment(read_recipe("demo/digits-bn").config, overrides).as_dict()
    assert whole["trainer"]["callbacks"][-1]["init_args"][key] == value
    assert Experiment(whole).as_dict() == whole


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
