"""A small set of rated texts in the published layout: a word or two decide."""

import numpy as np

GOOD, BAD, OTHER = ("fine", "great"), ("dull", "bad"), ("the", "film", "is", "a", "so", ":)")


def write_rated(folder, count=80):
    random, lines = np.random.RandomState(0), []
    for i in range(count):
        words = list(random.permutation(OTHER)[: 1 + i % 5])
        words.insert(random.randint(len(words) + 1), (GOOD, BAD)[i % 2][i % 4 // 2])
        # a word of its own, so that no text is there twice
        lines.append(f"{i}\t{(2.5, -1.5)[i % 2]}\t{' '.join(words)} w{i}\n")
    folder.mkdir(exist_ok=True)
    (folder / "movieReviewSnippets_GroundTruth.txt").write_text("".join(lines))
    return folder
