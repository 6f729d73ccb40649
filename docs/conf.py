"""Sphinx configuration: `make docs` builds the pages, `make doctest` runs their examples."""

import inspect
import logging
import os
from importlib.metadata import version as installed_version

import torch
from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.util.inspect import stringify_signature

from rnnorm.norm.spec import Spec

project = "rnnorm"
author = "The rnnorm authors"
copyright = f"2026, {author}"
version = release = installed_version("rnnorm")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_title = "rnnorm"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Shape"]

# what is documented elsewhere, whose inventories would need the network, and type variables
nitpick_ignore_regex = [
    ("py:.*", r"(torch|collections\.abc)\..*"),
    ("py:.*", r"(os|pathlib)\..*"),
    ("py:.*", r"(.*\.)?(Axes|(Sequence)?Layer|Model|Norm|RecurrentDropout|Tensor)"),
]

# no example waits for a compiler
os.environ["RNNORM_COMPILE"] = "0"
# the nets of the examples are small
torch.set_num_threads(1)
# an example's libraries may have root tell everything
logging.getLogger("rnnorm").setLevel(logging.WARNING)

# a page of each script, in the order of their names
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "filename_pattern": r"\.py$",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "capture_repr": (),
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
}

# every page starts from the same seed; a warning in an example is an error, as in the tests
doctest_global_setup = """
import warnings
import torch
import rnnorm
torch.manual_seed(0)
caught = warnings.catch_warnings()
caught.__enter__()
warnings.simplefilter("error")
"""
doctest_global_cleanup = "caught.__exit__(None, None, None)"


def _equation(translator, node):
    """Write MathML, which browsers draw by themselves: no script, no network."""
    display = "inline" if node.tagname == "math" else "block"
    tex = node.astext()
    if "\\\\" in tex:
        tex = rf"\begin{{align*}}{tex}\end{{align*}}"
    translator.body.append(convert(tex, display=display))
    raise SkipNode


def _fields_with_defaults(app, what, name, cls, options, signature, returns):
    """Show the fields of a norm or regulariser: autodoc would take ``Spec.__new__``'s arguments."""
    if what == "class" and issubclass(cls, Spec):
        return stringify_signature(inspect.signature(cls), show_annotation=False), returns
    return None


def setup(app):
    app.connect("autodoc-process-signature", _fields_with_defaults)
    app.add_html_math_renderer("mathml", (_equation, None), (_equation, None))
