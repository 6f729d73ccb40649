"""A small set of translations in the published layout of Multi30k: word for word."""

import random

SOURCE = ("ein", "hund", "katze", "läuft", "sitzt", "dort")
TARGET = ("a", "dog", "cat", "runs", "sits", "there")


def pairs(count, seed):
    drawn = random.Random(seed)
    for _ in range(count):
        words = [drawn.randrange(len(SOURCE)) for _ in range(drawn.randint(1, 4))]
        yield " ".join(SOURCE[w] for w in words), " ".join(TARGET[w] for w in words)


def write_multi30k(folder, train=240):
    folder.mkdir(exist_ok=True)
    counts = {"train": train, "val": 30, "test_2016_flickr": 30}
    for seed, (part, count) in enumerate(counts.items()):
        drawn = list(pairs(count, seed))
        for language, lines in zip(("de", "en"), zip(*drawn, strict=True), strict=True):
            path = folder / f"{part}.lc.norm.tok.{language}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder
