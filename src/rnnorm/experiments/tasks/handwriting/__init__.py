"""Handwriting: where the pen goes next."""
