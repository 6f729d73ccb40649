"""Frame classification of speech: the tied state of every frame."""
