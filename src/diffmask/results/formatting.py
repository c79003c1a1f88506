"""Numbers, intervals, durations and lists of names as text. All reports, verdicts and messages use these functions."""

import math
from collections.abc import Iterable, Sequence
from typing import Any


def format_number(value: int | float, digits: int = 3) -> str:
    """Format a number with `digits` digits after the point, fewer above 10, and significant digits below 0.001.

    >>> [format_number(number) for number in (0.4583, -0.0004, 12.3456, 1234.5, 0.0, float("inf"))]
    ['0.458', '−0.0004', '12.3', '1,234', '0', '∞']
    >>> format_number(0.00031, digits=4), format_number(12.3456, digits=4)
    ('0.00031', '12.35')
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 100:
        text = f"{size:,.0f}"
    elif size >= 10:
        text = f"{size:.{digits - 2}f}"
    else:
        text = f"{size:.{digits}f}" if size >= 0.001 else f"{size:.{digits - 2}g}"
    return f"−{text}" if value < 0 else text


def format_decimal(value: int | float, digits: int) -> str:
    """Format a number with a fixed number of decimals; what rounds to zero has no sign.

    >>> format_decimal(-0.0004, 2), format_decimal(-0.25, 2), format_decimal(1.005, 1)
    ('0.00', '-0.25', '1.0')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}"


def format_interval(low: int | float, high: int | float) -> str:
    """Format an interval.

    >>> format_interval(-0.01, 0.2)
    '−0.010 to 0.200'
    """
    return f"{format_number(low)} to {format_number(high)}"


def format_estimate(mean: int | float, low: int | float, high: int | float) -> str:
    """Format a mean with its confidence interval.

    >>> format_estimate(0.25, 0.2, 0.3)
    '0.250 [0.200, 0.300]'
    """
    return f"{format_number(mean)} [{format_number(low)}, {format_number(high)}]"


def format_count(value: int | float) -> str:
    """Format a count, which may be a mean.

    >>> [format_count(count) for count in (1.0, 19.25, 1234.0, 612.5)]
    ['1', '19.2', '1,234', '612']
    """
    return f"{value:,.0f}" if float(value).is_integer() else format_number(value)


def format_duration(seconds: int | float) -> str:
    """Format a duration in a suitable unit.

    >>> [format_duration(seconds) for seconds in (0, 0.0001, 0.014, 1.21, 95.2, 99.8, 400, 1500, 7300)]
    ['0 s', '0.1 ms', '14 ms', '1.2 s', '95 s', '100 s', '6.7 min', '25 min', '2.0 h']
    """
    if not seconds:
        return "0 s"
    if seconds < 0.1:
        return f"{_two_digits(1000 * seconds)} ms"
    if seconds < 100:
        return f"{_two_digits(seconds)} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _two_digits(value: int | float) -> str:
    """Return two significant digits, never in exponential notation: 99.8 is 100, not 1e+02."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def join_names(names: Sequence[str]) -> str:
    """Join names for a sentence.

    >>> join_names(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def lowercase_title(title: str) -> str:
    """Return a title as it is written inside a sentence; abbreviations keep their capitals.

    >>> lowercase_title("Mass on evidence"), lowercase_title("ROAR's RACU")
    ('mass on evidence', "ROAR's RACU")
    """
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def harmless_cells(cells: Iterable[Any]) -> list[Any]:
    """Put an apostrophe before texts that a spreadsheet would run as a formula; numbers stay as they are.

    >>> harmless_cells(["=SUM(A1)", -0.5, "good"])
    ["'=SUM(A1)", -0.5, 'good']
    """
    return [f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell for cell in cells]
