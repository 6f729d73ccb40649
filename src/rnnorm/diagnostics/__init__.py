"""Measurements inside a recurrent model: the figures of papers, for your own model.

Each function measures and returns numbers; ``plot_...`` draws them on a given matplotlib ``Axes``.
"""

from rnnorm.diagnostics.attention import plot_attention
from rnnorm.diagnostics.batch_statistics import batch_normalised, batch_statistics
from rnnorm.diagnostics.boundaries import plot_boundaries
from rnnorm.diagnostics.first_input import first_input_influence, plot_first_input_influence
from rnnorm.diagnostics.gradient_flow import (
    gradient_norms,
    gradient_norms_by_gamma,
    plot_gradient_norms,
)
from rnnorm.diagnostics.posteriors import plot_posteriors
from rnnorm.diagnostics.saturation import plot_tanh_derivative, tanh_derivative, tanh_inputs
from rnnorm.diagnostics.score_by_length import (
    plot_score_by_length,
    score_by_length,
)
from rnnorm.diagnostics.spectral_norm import SpectralNorm, plot_spectral_norms, spectral_norms
from rnnorm.diagnostics.stationarity import plot_statistic, population_statistics
from rnnorm.diagnostics.strokes import plot_strokes

__all__ = [
    "SpectralNorm",
    "batch_normalised",
    "batch_statistics",
    "first_input_influence",
    "gradient_norms",
    "gradient_norms_by_gamma",
    "plot_attention",
    "plot_boundaries",
    "plot_first_input_influence",
    "plot_gradient_norms",
    "plot_posteriors",
    "plot_score_by_length",
    "plot_spectral_norms",
    "plot_statistic",
    "plot_strokes",
    "plot_tanh_derivative",
    "population_statistics",
    "score_by_length",
    "spectral_norms",
    "tanh_derivative",
    "tanh_inputs",
]
