"""Resolution of ``norm=``: specs, names of presets, and mappings of sites to either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rnnorm.norm.spec import SITES, BatchNorm, BySite, LayerNorm, Norm, RMSNorm, field_of


@dataclass(frozen=True, repr=False, kw_only=True)
class MixedNorm(Norm):
    """A spec for each normalised site, which is made of a mapping; its repr is the mapping's.

    Args:
        specs: by site, a spec that normalises this site alone.
    """

    specs: Mapping[str, Norm]
    off = "left out"

    def __repr__(self) -> str:
        return repr(self.specs)

    @property
    def takes_statistics(self) -> bool:
        """Tell whether a site is batch-normalised."""
        return any([spec.takes_statistics for spec in self.specs.values()])

    def of(self, site: str) -> Norm | None:
        """Return the spec of a site's field."""
        return self.specs.get(field_of(site))

    def demanded(self) -> tuple[str, ...]:
        """Return all named sites but ``cell``, which a cell without ``c`` ignores."""
        return tuple([site for site in self.specs if site != "cell"])

    def initial_gamma(self, site: str) -> float:
        """Return the initial scale of a site."""
        return self.specs[field_of(site)].initial_gamma(site)


# of the input term alone, with the momentum of speechbrain
_LIGRU = BatchNorm(input="sequence", recurrent=None, cell=None, gamma=1.0, momentum=0.05)
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
    "haste": LayerNorm(over="term"),
    "torchaudio-rnnt": LayerNorm(input=False, recurrent=False, joint=True, cell=False, carry=True),
    "fastrnns": LayerNorm(cell=False, carry=True),
    "tf-addons": LayerNorm(cell=False, carry=True, eps=1e-3),
    "layer-norm-basic": LayerNorm(
        input=False, recurrent=False, joint=True, cell=False, carry=True, over="gate", eps=1e-12
    ),
    "sketch-rnn": LayerNorm(input=False, recurrent=False, joint=True, over="gate", eps=1e-3),
    "dreamer": LayerNorm(
        input=False, recurrent=False, joint=True, cell=False, over="term", eps=1e-3
    ),
    "ligru": _LIGRU,
    "sligru": MixedNorm(
        specs=BySite({"input": _LIGRU, "recurrent": LayerNorm(input=False, cell=False)})
    ),
}
#: a spec, the name of a preset, a spec or a name for each site, or None
NormLike = str | Norm | Mapping[str, str | Norm] | None
_KINDS = "a preset's name, an rnnorm.BatchNorm, an rnnorm.LayerNorm or an rnnorm.RMSNorm"


def resolve(norm: NormLike) -> Norm | None:
    """Turn a preset's name or a mapping into a spec, and leave a spec or None as it is.

    Raises:
        ValueError: if no preset has that name; if a mapping has no site, or one that does not
            exist or that its spec lacks; if it has ``joint`` together with ``input`` or
            ``recurrent``, or specs of batch norm with different ``min_rows``.
        TypeError: if ``norm`` is neither a name nor a spec nor a mapping nor None, or a mapping
            has a value that is neither a name nor a spec.
    """
    if norm is None or isinstance(norm, Norm):
        return norm
    if isinstance(norm, Mapping):
        return _mixed(norm)
    if not isinstance(norm, str):
        # rnnorm.LayerNorm in place of rnnorm.LayerNorm()
        uncalled = isinstance(norm, type) and issubclass(norm, Norm)
        got = f"the class: write {norm.__name__}()" if uncalled else type(norm)
        raise TypeError(f"norm must be None, {_KINDS}, or a mapping of sites to these, got {got}")
    return _preset("norm", norm, "None or ")


def _preset(argument: str, name: str, other: str = "") -> Norm:
    """Return the spec of a preset's name.

    Raises:
        ValueError: if no preset has that name.
    """
    if name not in PRESETS:
        raise ValueError(f"{argument} must be {other}one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def _mixed(given: Mapping[Any, Any]) -> MixedNorm:
    """Return the norm of a mapping of sites to specs or names."""
    unknown = [site for site in given if site not in SITES]
    if unknown or not given:
        got = repr(unknown[0]) if unknown else "none"
        raise ValueError(f"norm must name sites, which are {', '.join(SITES)}, got {got}")
    terms = [site for site in ("input", "recurrent") if site in given]
    if "joint" in given and terms:
        raise ValueError(
            "norm['joint'] normalises the sum of the input and the recurrent term: leave it out, "
            f"or leave out {' and '.join(map(repr, terms))}"
        )
    specs = {site: _at_site(site, spec) for site, spec in given.items()}
    least = {site: spec.min_rows for site, spec in specs.items() if isinstance(spec, BatchNorm)}
    if len(set(least.values())) > 1:
        raise ValueError(
            "min_rows must be the same in all specs of batch norm, since the rows of a step are "
            f"those of the layer, got {least}"
        )
    return MixedNorm(specs=BySite(specs))


def _at_site(site: str, given: Any) -> Norm:
    """Return the spec that a mapping has for a site, with the site on and all others off."""
    spec = _preset(f"norm[{site!r}]", given) if isinstance(given, str) else given
    if not isinstance(spec, Norm) or isinstance(spec, MixedNorm):
        raise TypeError(f"norm[{site!r}] must be {_KINDS}, got {given!r}")
    known = {field.name for field in fields(spec)}  # type: ignore[arg-type]
    if site not in known:
        raise ValueError(f"norm[{site!r}] must be a spec with this site, got {spec}")
    changes = {each: spec.off for each in SITES if each in known}
    changes[site] = getattr(spec, site) or spec.on
    if isinstance(spec.gamma, Mapping):
        changes["gamma"] = spec.initial_gamma(site)
    return replace(spec, **changes)  # type: ignore[type-var]
