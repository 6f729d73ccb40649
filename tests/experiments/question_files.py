"""Cloze questions in the published layout."""

from pathlib import Path

import numpy as np

PLACEHOLDERS = 8


def write_questions(folder: Path) -> Path:
    """A tiny corpus."""
    random = np.random.RandomState(0)
    verbs = ["met", "saw", "left", "called"]
    for part, count in (("training", 60), ("validation", 20), ("test", 20)):
        (folder / "questions" / part).mkdir(parents=True)
        for i in range(count):
            names = [f"@entity{n}" for n in random.permutation(40)[:6]]
            facts = [
                f"{names[k]} {verbs[random.randint(4)]} {names[(k + 1) % 6]} ." for k in range(6)
            ]
            asked = random.randint(6)
            query = facts[asked].replace(f"{names[asked]} ", "@placeholder ")
            parts = ["http://example.org", " ".join(facts), query, names[asked], "@entity1:Ann"]
            path = folder / "questions" / part / f"{i:03}.question"
            path.write_text("\n\n".join(parts) + "\n")
    return folder
