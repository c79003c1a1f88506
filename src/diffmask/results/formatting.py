"""Numbers for people: three figures after the point, or as many as a small number needs."""

import math


def shown(value: int | float) -> str:
    """A measured number.

    >>> [shown(number) for number in (0.4583, -0.0004, 12.3456, 1234.5, 0.0, float("inf"))]
    ['0.458', '−0.0004', '12.3', '1,234', '0', '∞']
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 100:
        text = f"{size:,.0f}"
    elif size >= 10:
        text = f"{size:.1f}"
    else:
        text = f"{size:.3f}" if size >= 0.001 else f"{size:.1g}"
    return f"−{text}" if value < 0 else text


def between(low: int | float, high: int | float) -> str:
    """An interval.

    >>> between(-0.01, 0.2)
    '−0.010 to 0.200'
    """
    return f"{shown(low)} to {shown(high)}"


def amount(value: int | float) -> str:
    """A count, which may be a mean.

    >>> [amount(count) for count in (1.0, 19.25, 1234.0, 612.5)]
    ['1', '19.2', '1,234', '612']
    """
    return f"{value:,.0f}" if float(value).is_integer() else shown(value)


def duration(seconds: int | float) -> str:
    """A time, in the unit a person would choose.

    >>> [duration(time) for time in (0, 0.0001, 0.014, 1.21, 95.2, 7300)]
    ['0', '0.1 ms', '14 ms', '1.2 s', '95 s', '2.0 h']
    """
    if not seconds:
        return "0"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    if seconds >= 0.1:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{1000 * seconds:.2g} ms"
