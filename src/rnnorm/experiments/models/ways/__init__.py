"""Ways to train a generator: what is fed at a step, and what the loss is."""
