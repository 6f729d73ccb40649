"""The arguments of a command are those of the function that it calls, written once."""

import inspect
from argparse import ArgumentParser
from importlib import import_module

import pytest

from rnnorm.experiments.commands import cli
from rnnorm.experiments.commands.options import Arguments

FUNCTIONS = {
    "demo": "commands.demo.demo",
    "fit": "training.fit.fit",
    "test": "trained.test.measure",
    "compare": "comparing.compare.compare",
    "report": "reporting.report.report",
    "export": "trained.export.export",
    "search": "searching.search.search",
    "check": "bench.check.check",
}
#: arguments of commands that the functions do not have
OF_COMMANDS = {"help", "trust", "status"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_command_offers_its_functions_arguments_with_their_defaults(name):
    module, _, function = FUNCTIONS[name].rpartition(".")
    found = getattr(import_module(f"rnnorm.experiments.{module}"), function)
    parameters = inspect.signature(found).parameters
    text = " ".join(inspect.getdoc(found).replace("``", "").replace('"', "").split())
    actions = cli._parser(name, cli._COMMANDS[name])._actions
    for action in (a for a in actions if a.dest not in OF_COMMANDS):
        default = parameters[action.dest].default
        if action.option_strings and default is not inspect.Parameter.empty:
            assert action.default == ([] if default == () else default)
        else:
            assert action.default == ([] if default == () else None)
        shown, _, appended = action.help.rpartition(" (")
        sentence = shown if appended == f"{default}".removesuffix(".0") + ")" else action.help
        assert f"{action.dest}: {sentence}." in text


#: a module of the experiments as a stranger may write it
SOURCE = '''
from typing import Literal
from rnnorm.experiments.trained.measurement import Statistics
Way = Literal["there", "back"]

def go(
    places: Sequence[str | Path],
    far: float = 2.0,
    *,
    way: Way = "there",
    statistics: Statistics | None = None,
    steps: int | None = None,
    rests: Sequence[int] = (),
    fast: bool = False,
    most: float = 0.5,
    odd: dict[str, int] | None = None,
) -> None:
    """Go.

    Args:
        places: names of places, ``a.b`` or ``"c"``. More is said later:
            not here.
        far: how far, in %% of all that
            there is.
        way: which way
        statistics: population: or batch.
        steps: number of steps.
        rests: where to rest.
        fast: whether to run.
        most: the most.
        odd: no option.

    Returns:
        places: nothing.
    """
'''.replace("%%", "%")


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    (tmp_path / "trained").mkdir()
    (tmp_path / "way.py").write_text(SOURCE)
    source = 'Statistics = Literal["population", "batch"]\n'
    (tmp_path / "trained" / "measurement.py").write_text(source)
    monkeypatch.setattr("rnnorm.experiments.commands.options._EXPERIMENTS", tmp_path)
    parser = ArgumentParser()
    return parser, Arguments(parser, "way.go")


def test_types_choices_and_defaults_are_those_of_the_signature(arguments):
    parser, own = arguments
    own.word("places", "PLACE")
    for name in ("far", "way", "statistics", "steps", "rests", "fast"):
        own.option(name)
    own.option("most", "X", "--at-most", default=None)
    assert vars(parser.parse_args(["a", "b"])) == {
        "places": ["a", "b"],
        "far": 2.0,
        "way": "there",
        "statistics": None,
        "steps": None,
        "rests": [],
        "fast": False,
        "most": None,
    }
    words = "--far 1 --way back --statistics batch --steps 3 --rests 1 2 --fast --at-most 4"
    assert vars(parser.parse_args([*words.split(), "--", "a"])) == {
        "places": ["a"],
        "far": 1.0,
        "way": "back",
        "statistics": "batch",
        "steps": 3,
        "rests": [1, 2],
        "fast": True,
        "most": 4.0,
    }
    for wrong in (["--way=up"], ["--statistics=none"], ["--steps=many"], ["--rests=x"]):
        with pytest.raises(SystemExit):
            parser.parse_args(["a", *wrong])
    with pytest.raises(SystemExit):
        parser.parse_args([])


def test_the_help_is_the_first_sentence_with_the_default(arguments):
    parser, own = arguments
    own.word("places", "PLACE")
    for name in ("far", "way", "statistics", "fast"):
        own.option(name)
    own.option("most", "X", "--at-most", default=None)
    assert {a.dest: a.help for a in parser._actions[1:]} == {
        "places": "names of places, a.b or c",
        "far": "how far, in %% of all that there is (2)",
        "way": "which way (there)",
        "statistics": "population: or batch",
        "fast": "whether to run",
        "most": "the most (0.5)",
    }
    assert "in % of all" in " ".join(parser.format_help().split())


def test_an_annotation_that_no_word_fits_is_named(arguments):
    with pytest.raises(TypeError, match=r"of type dict\[str, int\]"):
        arguments[1].option("odd")
