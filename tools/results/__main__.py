"""``python -m tools.results RUN ...``: write the page of results again, with more runs."""

from __future__ import annotations

from argparse import ArgumentParser

from rnnorm.experiments.recipe.trust import trusting
from tools.results.record import results

parser = ArgumentParser("python -m tools.results", description=__doc__)
parser.add_argument(
    "runs",
    metavar="RUN",
    nargs="*",
    help="run folders, or storages of searches, to record first",
)
parser.add_argument(
    "--docs", metavar="DIR", default="docs", help="holds results.md and results/ (docs)"
)
parser.add_argument(
    "--trust", action="store_true", help="let run folders name classes of other packages"
)
given = parser.parse_args()
with trusting(given.trust):
    print(results(given.runs, docs=given.docs))
