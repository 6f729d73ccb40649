"""Experiments: data sets, training recipes and the ``rnnorm`` command line.

Needs the extra: ``pip install "rnnorm[experiments]"``. The library itself never imports it.
"""
