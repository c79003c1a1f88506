"""Errors and warnings of this package. Every error is a `DiffMaskError` and also the matching builtin exception."""

from collections.abc import Iterable
from difflib import get_close_matches


class DiffMaskError(Exception):
    """Base class of all errors of this package. Messages name the place, the value given and the remedy."""


class InputError(DiffMaskError, ValueError):
    """A batch, text or table that cannot be explained."""


class ConfigError(DiffMaskError, ValueError):
    """A config or an experiment file with a wrong key, name, type or value."""


class SiteError(DiffMaskError, LookupError):
    """A site that the model does not have, or that a forward pass does not call exactly once."""


class TaskError(DiffMaskError, NotImplementedError):
    """An ability that a task does not have."""


class NumericsError(DiffMaskError, ArithmeticError):
    """A model output or a score that is not finite."""


class MethodError(DiffMaskError, RuntimeError):
    """A method whose own code raised an error."""


class ExtraError(DiffMaskError, ImportError):
    """An optional dependency that is not installed."""


class StoreError(DiffMaskError, OSError):
    """An artefact that is missing, truncated or of another kind."""


class EngineError(DiffMaskError, RuntimeError):
    """Workers that cannot be started or that are lost."""


class RunError(DiffMaskError, RuntimeError):
    """A run with failed nodes. Finished nodes are stored and reported."""


class InputWarning(UserWarning):
    """An input that is explained only in part."""


class TrainingWarning(UserWarning):
    """A training that starts from other weights than expected."""


class FitWarning(UserWarning):
    """A fit whose diagnostics fail: its explanations are not reliable."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most similar to `name` and all known names, as the end of an error message.

    >>> nearest("gradeint", ["gradient", "leave-one-out"])
    "nearest: 'gradient'; known: gradient, leave-one-out"
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"nearest: '{close[0]}'; " if close else ""
    return f"{hint}known: {', '.join(names) or 'none'}"
