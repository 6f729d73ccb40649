"""The options of a recipe as a text."""

from __future__ import annotations

from rnnorm.experiments.training.building import Built
from rnnorm.experiments.training.options import option_values
from rnnorm.experiments.training.overrides import FIT_SETS
from rnnorm.experiments.training.recipe import read_recipe


def option_list(recipe: str) -> str:
    """Every option that a recipe takes, with its value there, as a text."""
    whole = Built(read_recipe(recipe).config).as_dict()
    lines = [f"options of {recipe}, with its values at the paper's scale:"]
    for name, value in option_values(whole).items():
        # a list of callbacks or the like is not for the command line, and there is one seed
        if isinstance(value, list) or FIT_SETS.match(name) or name == "--data.seed":
            continue
        fields = value.items() if isinstance(value, dict) else ()
        for option, given in [(f"{name}.{key}", field) for key, field in fields] or [(name, value)]:
            lines.append(f"  {option}={'null' if given is None else given}")
    return "\n".join(lines)
