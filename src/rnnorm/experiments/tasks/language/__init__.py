"""Language modelling: predict the next character or word of a text."""
