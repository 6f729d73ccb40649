"""Arguments of commands, which are those of the functions that the commands call."""

from __future__ import annotations

import ast
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EXPERIMENTS = Path(__file__).parents[1]
_PACKAGE = "rnnorm.experiments."
SCALES = ("paper", "small")


class Arguments:
    """Adds arguments of a function to the parser of the command that calls the function.

    The function's source says all about an argument: the annotation its type and choices, the
    signature its default, and the first sentence of its text in the docstring its help. The source
    is read, not imported, since an import of torch takes seconds.

    Args:
        parser: the command's parser.
        function: the function's name in the experiments, such as ``"training.fit.fit"``.
    """

    def __init__(self, parser: ArgumentParser, function: str) -> None:
        module, _, name = function.rpartition(".")
        self._parser, self._tree = parser, _parsed(module)
        (found,) = (n for n in self._tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
        parameters = [*found.args.posonlyargs, *found.args.args]
        first = len(parameters) - len(found.args.defaults)
        parameters += found.args.kwonlyargs
        defaults = [*found.args.defaults, *found.args.kw_defaults]
        self._annotations = {parameter.arg: parameter.annotation for parameter in parameters}
        self._defaults = dict(zip([p.arg for p in parameters[first:]], defaults, strict=True))
        self._texts = _texts(ast.get_docstring(found) or "")

    def word(self, name: str, metavar: str, **given: Any) -> None:
        """Add an argument that is given without its name.

        Args:
            name: the argument's name in the signature.
            metavar: what stands for a value in the help.
            **given: arguments of ``add_argument`` that take precedence over the function's.
        """
        self._parser.add_argument(name, metavar=metavar, **self._keywords(name) | given)

    def option(
        self, name: str, metavar: str | None = None, option: str | None = None, **given: Any
    ) -> None:
        """Add an argument that is given as an option.

        Args:
            name: the argument's name in the signature.
            metavar: what stands for a value in the help, unless there are choices.
            option: name of the option; ``--`` and the argument's name by default.
            **given: arguments of ``add_argument`` that take precedence over the function's.
        """
        keywords = self._keywords(name) | given
        if metavar is not None:
            keywords["metavar"] = metavar
        option = option or f"--{name.replace('_', '-')}"
        self._parser.add_argument(option, dest=name, **keywords)

    def _keywords(self, name: str) -> dict[str, Any]:
        """Return the arguments of ``add_argument`` that describe an argument."""
        keywords = _type(self._annotations[name], self._tree) | {"help": _help(self._texts[name])}
        if (default := self._defaults.get(name)) is not None:
            value = ast.literal_eval(default)
            keywords["default"] = [] if value == () else value
            if value not in (None, ()) and value is not False:
                keywords["help"] += f" ({value:g})" if isinstance(value, float) else f" ({value})"
        return keywords


def _parsed(module: str) -> ast.Module:
    """Return the syntax tree of a module of the experiments."""
    path = _EXPERIMENTS / f"{module.replace('.', '/')}.py"
    return ast.parse(path.read_text(encoding="utf-8"))


def _texts(docstring: str) -> dict[str, str]:
    """Return the text on each argument in the section ``Args`` of a docstring."""
    section = re.split(r"\n(?=\S)", docstring.partition("\nArgs:\n")[2])[0]
    return dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE))


def _help(text: str) -> str:
    """Return the first sentence of an argument's text, without its marks of code."""
    sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()))[0]
    return re.sub(r'``"?(.*?)"?``', r"\1", sentence).replace("%", "%%")


def _type(annotation: Any, tree: ast.Module) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` that an annotation stands for.

    Args:
        annotation: the annotation; of a union such as ``str | Path | None`` the first type counts.
        tree: the module of the annotation, to look up the name of a ``Literal``.
    """
    match annotation:
        case ast.BinOp():
            return _type(annotation.left, tree)
        case ast.Subscript(value=ast.Name(id="Literal")):
            return {"choices": ast.literal_eval(annotation.slice)}
        case ast.Subscript(value=ast.Name(id="Sequence")):
            return {"nargs": "+", **_type(annotation.slice, tree)}
        case ast.Name(id="bool"):
            return {"action": "store_true"}
        case ast.Name(id="str" | "int" | "float"):
            return {"type": {"str": str, "int": int, "float": float}[annotation.id]}
    name = ast.unparse(annotation)
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=alias)]) if alias == name:
                return _type(node.value, tree)
            case ast.ImportFrom(module=str(module), names=names) if module.startswith(_PACKAGE):
                if name in [imported.name for imported in names]:
                    return _type(annotation, _parsed(module.removeprefix(_PACKAGE)))
    raise TypeError(f"no argument of a command can be of type {name}")


def overrides(
    parser: ArgumentParser,
    such_as: str = "--trainer.max_epochs=5 --model.hidden_size=50 --optimizer.lr=0.002",
    but: str = "",
) -> None:
    """Let a command take the options of recipes.

    Args:
        parser: the command's parser.
        such_as: examples of such options.
        but: the clause that names the options that the command refuses.
    """
    parser.set_defaults(overrides=[])
    parser.epilog = (
        f"Any option of the recipe can be given too{but}, for example {such_as}; "
        "rnnorm fit RECIPE --help lists them."
    )


def overrides_of_a_run(parser: ArgumentParser, by_trainer: bool = False) -> None:
    """Let a command that uses a trained model take the options of its recipe."""
    such_as = "--data.eval_batch_size=50"
    but = ", except those of training where RUN is a run folder"
    if by_trainer:
        such_as += " --trainer.accelerator=cpu"
    else:
        but += " and those of the trainer"
    overrides(parser, such_as, but)


def recipe_name(word: str) -> str:
    """Check that a word names a recipe, and return it; for ``type=``."""
    from rnnorm.experiments.training.run_names import refuse_unknown_recipe

    return _checked(refuse_unknown_recipe, word)


def recipe_or_run(word: str) -> str:
    """Check that a word names a recipe, a run or a folder of runs, and return it; for ``type=``."""
    from rnnorm.experiments.training.run_names import refuse_unknown

    return _checked(refuse_unknown, word)


def run_folder(word: str) -> str:
    """Check that a word names a run or a folder of runs, and return it; for ``type=``."""
    from rnnorm.experiments.training.run_names import runs_in

    return _checked(runs_in, word)


def trust(parser: ArgumentParser) -> None:
    """Add the option that lets recipes and run folders name classes of any package."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="let recipes and run folders name classes of other packages than rnnorm, torch and "
        "lightning, whose code runs",
    )


def seed(word: str) -> int:
    """Check that torch accepts a seed, and return it; for ``type=``.

    Raises:
        ArgumentTypeError: if the seed is not from 0 to 2**64 - 1.
    """
    number = int(word)
    if not 0 <= number < 2**64:
        raise ArgumentTypeError(f"it must be from 0 to {2**64 - 1}, got {word}")
    return number


def message(error: Exception) -> str:
    """Return the message of an error, without the error number of the system."""
    if isinstance(error, OSError) and error.strerror:
        known = error.filename is None or str(error.filename) in error.strerror
        return error.strerror if known else f"{error.strerror}: {error.filename}"
    return str(error)


def _checked(refuse: Callable[[str], object], word: str) -> str:
    """Return a word, or turn its refusal into an error of argparse.

    Raises:
        ArgumentTypeError: if ``refuse`` raises an error.
    """
    try:
        refuse(word)
    except (ValueError, OSError) as error:
        # OSError: a name is too long, or a folder belongs to another user
        raise ArgumentTypeError(message(error)) from None
    return word
