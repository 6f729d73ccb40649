"""Handwriting: predict the next point of a pen."""
