"""Frame classification of speech: predict the tied state of every frame."""
