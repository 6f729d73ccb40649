"""Stand-ins for the tensors of a step while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from rnnorm.kernels.equations.graph import COMPARISONS
from rnnorm.kernels.equations.opaque import Features, Opaque, Rows, TraceError, Type, Width

if TYPE_CHECKING:
    from rnnorm.kernels.equations.trace import TracedStep


class Matrix(Opaque):
    """A weight that is no vector with one number for each unit."""

    def __init__(self, name: str, sizes: tuple[int, ...], step: TracedStep) -> None:
        self.reason = (
            f"it computes with {name}, which has not one number for each unit, other than by "
            "Cell.product"
        )
        self.name, self.sizes, self.dtype = name, sizes, _DTYPE
        least = step.H // step.cell.heads
        self.shape = tuple([Features() if n % least else Width(Fraction(n, step.H)) for n in sizes])

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a function of torch whose first argument is a matrix."""
        return Columns.__torch_function__(func, types, args, kwargs)


_DTYPE, _DEVICE, _ROWS = Type(), Type(), Rows()


class Columns:
    """A tensor of a traced step, as nodes: one for each H columns."""

    __slots__ = ("columns", "rank", "step")
    dtype, device = _DTYPE, _DEVICE

    def __init__(self, step: TracedStep, columns: Sequence[int], rank: int = 2) -> None:
        self.step, self.columns, self.rank = step, tuple(columns), rank

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a function of torch, by its name."""
        name = func.__name__
        if name not in _FUNCTIONS:
            raise TraceError(f"torch's {name} cannot be compiled")
        return _FUNCTIONS[name](*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _FUNCTIONS:
            raise TraceError(f"{name} of a tensor cannot be compiled")
        return partial(_FUNCTIONS[name], self)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the number of rows, which is not known, and of columns."""
        return (*(_ROWS,) * (self.rank - 1), Width(len(self.columns)))

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.rank

    def to(self, dtype: object) -> Columns:
        """Return these columns in the dtype that all have, where a comparison is 1 or 0."""
        if dtype is not _DTYPE and dtype is not _DEVICE:
            raise TraceError("it changes a dtype or a device")
        return _where(self, 1.0, 0.0) if self.compared and dtype is _DTYPE else self

    @property
    def compared(self) -> bool:
        """Tell whether any of these columns is a comparison."""
        return any([self.step[column].name in COMPARISONS for column in self.columns])

    def __bool__(self) -> bool:
        raise TraceError("it decides by a value")

    def __float__(self) -> float:
        raise TraceError("it takes a number out of a tensor")

    __int__ = __index__ = item = tolist = __float__
    __hash__ = object.__hash__

    def __iter__(self) -> Any:
        raise TraceError("it reads a tensor row by row")

    def __getitem__(self, index: object) -> Columns:
        columns = index[-1] if isinstance(index, tuple) else index
        rows = index[:-1] if isinstance(index, tuple) else ()
        if len(rows) != self.rank - 1 or any([r != slice(None) and r is not ... for r in rows]):
            raise TraceError("it reads a tensor row by row")
        if not isinstance(columns, slice) or columns.step not in (None, 1):
            raise TraceError("it reads single columns")
        gates = len(self.columns)
        start, stop = (
            end if bound is None else _gates_in(bound)
            for bound, end in ((columns.start, Fraction(0)), (columns.stop, Fraction(gates)))
        )
        start, stop = (bound + gates if bound < 0 else bound for bound in (start, stop))
        return self._part(start, min(stop, Fraction(gates)))

    def _part(self, start: Fraction, stop: Fraction) -> Columns:
        """Return some of these columns, which must be whole gates."""
        if not (start.denominator == stop.denominator == 1 and 0 <= start < stop):
            raise TraceError("it reads columns that are not whole gates")
        if stop > len(self.columns):
            raise TraceError("it reads columns that are not there")
        return Columns(self.step, self.columns[int(start) : int(stop)], self.rank)

    def __neg__(self) -> Columns:
        return self.step.pointwise("neg", self)

    def __abs__(self) -> Columns:
        return self.step.pointwise("abs", self)

    def __pow__(self, power: object) -> Columns:
        return _pow(self, power)

    def __and__(self, other: Columns) -> Columns:
        return _ne(_where(self, _where(other, 1.0, 0.0), 0.0), 0.0)

    def __or__(self, other: Columns) -> Columns:
        return _ne(_where(self, 1.0, _where(other, 1.0, 0.0)), 0.0)

    def __invert__(self) -> Columns:
        return _eq(_where(self, 1.0, 0.0), 0.0)

    def __matmul__(self, weight: object) -> NoReturn:
        raise TraceError("it has a product that is not Cell.product of h and weight_hh")


def _pointwise(name: str) -> Callable[..., Columns]:
    """Return a function of torch that is one operator."""

    def function(*operands: Any, **named: Any) -> Columns:
        operands += (*named.values(),)
        step = next(o for o in operands if isinstance(o, (Columns, Matrix))).step
        return step.pointwise(name, *operands)

    return function


def _reflected(function: Callable[..., Columns]) -> Callable[..., Columns]:
    return lambda a, b: function(b, a)


def _refused(name: str) -> Callable[..., NoReturn]:
    """Return an operator that cannot be compiled."""

    def function(*operands: object) -> NoReturn:
        raise TraceError(f"{name} of a tensor cannot be compiled")

    return function


_add, _sub, _product, _div = map(_pointwise, ("add", "sub", "mul", "div"))


def _mul(a: Any, b: Any) -> Columns:
    if isinstance(a, Columns) and isinstance(b, Columns) and a.compared != b.compared:
        # a comparison beside numbers is 1 or 0
        a, b = a.to(_DTYPE), b.to(_DTYPE)
    return _product(a, b)


for _symbol, _function in (("add", _add), ("sub", _sub), ("mul", _mul), ("truediv", _div)):
    setattr(Columns, f"__{_symbol}__", _function)
    setattr(Columns, f"__r{_symbol}__", _reflected(_function))
for _name in COMPARISONS:
    setattr(Columns, f"__{_name}__", _pointwise(_name))
for _name in ("floordiv", "rfloordiv", "mod", "rmod", "rpow", "xor", "rmatmul", "len", "setitem"):
    setattr(Columns, f"__{_name}__", _refused(_name))


def _scaled(function: Callable[..., Columns]) -> Callable[..., Columns]:
    """Return ``a + alpha b`` or ``a - alpha b`` of a sum or difference."""
    return lambda a, b, alpha=1: function(a, b if alpha == 1 else _mul(b, alpha))


def _gates_in(size: object) -> Fraction:
    """Return how many gates a number of columns has."""
    if isinstance(size, Width):
        return size.share
    if size == 0:
        return Fraction(0)
    raise TraceError(f"it reads columns by {size}, which is not a share of its units")


def _split(z: Columns, size: Width | Sequence[Width], dim: int = 0) -> tuple[Columns, ...]:
    if dim not in (-1, z.rank - 1):
        raise TraceError("it splits the rows of a tensor")
    gates = len(z.columns)
    if isinstance(size, (list, tuple)):
        parts = [_gates_in(each) for each in size]
    elif (part := _gates_in(size)) > 0:
        whole = int(gates // part)
        parts = [part] * whole + [gates - whole * part] * (whole * part != gates)
    else:
        parts = []
    if sum(parts) != gates:
        raise TraceError(f"it splits {gates} gates into others")
    ends = [sum(parts[: k + 1], Fraction(0)) for k in range(len(parts))]
    return tuple([z._part(end - own, end) for own, end in zip(parts, ends, strict=True)])


def _chunk(z: Columns, chunks: int, dim: int = 0) -> tuple[Columns, ...]:
    return _split(z, Width(Fraction(len(z.columns), chunks)), dim)


def _cat(parts: Sequence[Columns], dim: int = 0) -> Columns:
    if dim not in (-1, parts[0].rank - 1):
        raise TraceError("it joins the rows of tensors")
    return Columns(parts[0].step, [c for z in parts for c in z.columns], parts[0].rank)


def _linear(x: Columns, weight: object, bias: Columns | None = None) -> Columns:
    product = x.step.recurrent(x, weight)
    return product if bias is None else _add(product, bias)


def _pow(x: Columns, power: object) -> Columns:
    if power == 0.5:
        return _sqrt(x)
    if power not in (-2, -1, 1, 2, 3, 4):
        raise TraceError(f"it has a power other than -2, -1, 0.5, 1, 2, 3 and 4: {power}")
    # power is a number here
    times: int = abs(power)
    result = x
    for _ in range(times - 1):
        result = _mul(result, x)
    return result if times == power else _div(1.0, result)


def _clamp(x: Columns, min: float | None = None, max: float | None = None) -> Columns:
    for name, bound in (("clamp_min", min), ("clamp_max", max)):
        if isinstance(bound, Columns):
            raise TraceError("it clamps by a tensor")
        x = x if bound is None else x.step.pointwise(name, x, bound)
    return x


def _softplus(x: Columns, beta: float = 1, threshold: float = 20) -> Columns:
    z = x if beta == 1 else _mul(x, beta)
    far = _gt(z, threshold)
    # where the exponential overflows, its gradient would be nan
    smooth = _log1p(_exp(_where(far, 0.0, z)))
    return _where(far, x, smooth if beta == 1 else _div(smooth, beta))


def _log_sigmoid(x: Columns) -> Columns:
    below = _lt(x, 0.0)
    return _sub(_where(below, x, 0.0), _log1p(_exp(_where(below, x, _neg(x)))))


def _hardtanh(x: Columns, min_val: float = -1.0, max_val: float = 1.0) -> Columns:
    # not a clamp, as a value at a bound has no gradient
    return _where(_le(x, min_val), min_val, _where(_ge(x, max_val), max_val, x))


def _leaky_relu(x: Columns, negative_slope: float = 0.01) -> Columns:
    return _where(_gt(x, 0.0), x, _mul(x, negative_slope))


def _full_like(z: Columns, fill_value: float) -> Columns:
    number = z.step.add("number", (), float(fill_value))
    return Columns(z.step, [number] * len(z.columns), z.rank)


def _in_place(function: Callable[..., Columns]) -> Callable[..., Columns]:
    def out_of_place(x: Columns, *options: Any, inplace: bool = False, **named: Any) -> Columns:
        if inplace:
            raise TraceError("it computes in place")
        return function(x, *options, **named)

    return out_of_place


_abs, _sqrt, _exp, _log1p, _sigmoid = map(_pointwise, ("abs", "sqrt", "exp", "log1p", "sigmoid"))
_where, _neg, _gt, _ge = map(_pointwise, ("where", "neg", "gt", "ge"))
_lt, _le, _eq, _ne = map(_pointwise, ("lt", "le", "eq", "ne"))
# torch's functions that are one operator of a graph, which has their names
_OPERATORS = (
    *("neg", "abs", "sqrt", "exp", "log", "log1p", "sigmoid", "tanh"),
    *("minimum", "maximum", "lerp", "where"),
)
# functions and methods of torch, by their names there
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: _pointwise(name) for name in (*_OPERATORS, *COMPARISONS)},
    "special_expit": _sigmoid,
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), _mul),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), _div),
    **dict.fromkeys(("add", "__add__", "__radd__"), _scaled(_add)),
    **dict.fromkeys(("sub", "subtract", "__sub__"), _scaled(_sub)),
    **dict.fromkeys(("rsub", "__rsub__"), lambda a, b, alpha=1: _scaled(_sub)(b, a, alpha)),
    "relu": _in_place(_pointwise("relu")),
    "silu": _in_place(lambda x: _mul(x, _sigmoid(x))),
    "hardtanh": _in_place(_hardtanh),
    "leaky_relu": _in_place(_leaky_relu),
    "softsign": lambda x: _div(x, _add(_abs(x), 1.0)),
    **dict.fromkeys(("logical_and", "bitwise_and"), Columns.__and__),
    **dict.fromkeys(("logical_or", "bitwise_or"), Columns.__or__),
    **dict.fromkeys(("logical_not", "bitwise_not"), Columns.__invert__),
    "type_as": lambda x, other: x.to(other.dtype),
    "square": lambda x: _mul(x, x),
    "reciprocal": lambda x: _div(1.0, x),
    "rsqrt": lambda x: _div(1.0, _sqrt(x)),
    "pow": _pow,
    "addcmul": lambda a, b, c, value=1: _scaled(_add)(a, _mul(b, c), value),
    "clamp": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min),
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "zeros_like": lambda z: _full_like(z, 0.0),
    "ones_like": lambda z: _full_like(z, 1.0),
    "full_like": _full_like,
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _chunk,
    "cat": _cat,
    "concat": _cat,
    "linear": _linear,
    "product_of_heads": lambda h, weight, heads: _linear(h, weight),
}
