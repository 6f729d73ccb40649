"""A recipe that names a text of one's own by a relative path."""

import yaml

LINES = ["the cat sat on the mat", "a cat ran miles", "on the mat a cat sat"]
TEXT = "".join(f"{LINES[i * i % 3]}\n" for i in range(80))


def write_novel(folder, **search):
    """Write ``novel.txt``, and a recipe ``own.yaml`` that trains on it in a moment."""
    folder.mkdir()
    (folder / "novel.txt").write_text(TEXT)
    data = {"dataset": "text", "file": "novel.txt", "length": 20, "batch_size": 20}
    recipe = {
        "base": "cooijmans2016/ptb-char-lstm",
        "trainer": {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1},
        "model": {"init_args": {"hidden_size": 4, "vocabulary_size": len(set(TEXT))}},
        "data": {"init_args": {**data, "train_size": 500, "eval_size": 80}},
    }
    (folder / "own.yaml").write_text(yaml.safe_dump({**recipe, **search}))
