"""Stand-ins for values that a traced step may hand on, and must not compute with."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NoReturn


class TraceError(Exception):
    """Raised where a kernel cannot run the equations of a cell's step, with the reason."""


def kind_of(value: object) -> str:
    """Name a value that a trace cannot hold."""
    if type(value).__name__ in ("Tensor", "Parameter"):
        return "a tensor that is no weight of the cell"
    return f"a value of type {type(value).__name__}"


class Opaque:
    """A value that a step may hand on, and not compute with."""

    reason = ""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TraceError(self.reason)

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = _refuse
    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __divmod__ = __rdivmod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(self.reason)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse a function of torch."""
        raise TraceError(cls.reason)


class Age(Opaque):
    """The index of the step."""

    reason = "it reads t"


class Rows(Opaque):
    """The number of rows."""

    reason = "it reads the number of rows"


class Features(Opaque):
    """The number of features of a frame, or another that is not a share of the units."""

    reason = "it reads the number of features"


class Type(Opaque):
    """A dtype or device."""

    reason = "it reads a dtype or a device"


class Width:
    """A number of columns, as a share of the number of units."""

    reason = "it computes with the number of units"

    def __init__(self, share: Fraction | int) -> None:
        self.share = Fraction(share)

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError(self.reason)

    __float__ = __int__ = __index__ = __pow__ = __rpow__ = __mod__ = __rtruediv__ = _refuse
    __hash__ = object.__hash__

    def _times(self, factor: object) -> Width:
        return Width(self.share * factor) if isinstance(factor, int) else self._refuse()

    def _share_of(self, other: object) -> Fraction:
        return other.share if isinstance(other, Width) else self._refuse()

    __mul__ = __rmul__ = _times

    def __floordiv__(self, divisor: object) -> Width:
        return Width(self.share / divisor) if isinstance(divisor, int) else self._refuse()

    def __add__(self, other: object) -> Width:
        return Width(self.share + self._share_of(other))

    def __sub__(self, other: object) -> Width:
        return Width(self.share - self._share_of(other))

    def __neg__(self) -> Width:
        return Width(-self.share)

    def __truediv__(self, other: object) -> float:
        return float(self.share / self._share_of(other))

    def __eq__(self, other: object) -> bool:
        return self.share == self._share_of(other)

    def __lt__(self, other: object) -> bool:
        return self.share < self._share_of(other)

    def __le__(self, other: object) -> bool:
        return self.share <= self._share_of(other)

    def __gt__(self, other: object) -> bool:
        return self.share > self._share_of(other)

    def __ge__(self, other: object) -> bool:
        return self.share >= self._share_of(other)
