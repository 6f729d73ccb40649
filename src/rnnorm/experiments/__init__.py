"""Experiments: data sets, training recipes and the ``rnnorm`` command line.

Needs the extra: ``pip install ".[experiments]"`` in a clone. The library itself never imports it.
"""
