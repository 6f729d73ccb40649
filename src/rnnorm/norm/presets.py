"""What ``norm=`` takes: specs, and the names of presets."""

from __future__ import annotations

from collections.abc import Mapping

from rnnorm.norm.spec import BatchNorm, LayerNorm, Norm, RMSNorm

PRESETS: Mapping[str, Norm] = {
    "batch": BatchNorm(),
    "layer": LayerNorm(),
    "rms": RMSNorm(),
    "cooijmans2016": BatchNorm(),
    "laurent2015-sequence": BatchNorm(input="sequence", recurrent=None, cell=None, gamma=1.0),
    "laurent2015-frame": BatchNorm(recurrent=None, cell=None, gamma=1.0),
    "bn-e*": BatchNorm(input="sequence"),
    "joint": BatchNorm(input=None, recurrent=None, joint="frame", cell=None, gamma=1.0),
    "carry": BatchNorm(input=None, recurrent=None, cell=None, carry="frame", gamma=1.0),
    "ba2016": LayerNorm(),
}
#: a spec, the name of a preset, or None
NormLike = str | Norm | None


def resolve(norm: NormLike) -> Norm | None:
    """Turn the name of a preset into its spec, and leave a spec or None as it is.

    Raises:
        ValueError: if no preset has that name.
        TypeError: if ``norm`` is neither a name nor a spec nor ``None``.
    """
    if norm is None or isinstance(norm, Norm):
        return norm
    if not isinstance(norm, str):
        raise TypeError(
            "norm must be None, a preset's name, an rnnorm.BatchNorm, an rnnorm.LayerNorm or an "
            f"rnnorm.RMSNorm, got {type(norm)}"
        )
    if norm not in PRESETS:
        raise ValueError(f"norm must be None or one of {', '.join(PRESETS)}, got {norm!r}")
    return PRESETS[norm]
