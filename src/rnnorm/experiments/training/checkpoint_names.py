"""What the checkpoints of a run are called."""

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
