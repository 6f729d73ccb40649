"""The options of a recipe as a text."""

from __future__ import annotations

from rnnorm.experiments.training.building import Built
from rnnorm.experiments.training.options import option_values
from rnnorm.experiments.training.recipe import read_recipe


def option_list(recipe: str) -> str:
    """Every option that a recipe takes, with its value there, as a text."""
    whole = Built(read_recipe(recipe).config).as_dict()
    lines = [f"options of {recipe}, with its values at the paper's scale:"]
    for name, value in option_values(whole).items():
        # a list of callbacks or the like is not for the command line, and there is one seed
        if not isinstance(value, list | dict) and name != "--data.seed":
            lines.append(f"  {name}={'null' if value is None else value}")
    return "\n".join(lines)
