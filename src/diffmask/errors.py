"""Every error of this package: ours by type, a builtin by inheritance."""

from collections.abc import Iterable
from difflib import get_close_matches


class DiffMaskError(Exception):
    """Anything this package refuses to do, with the place and what would work."""


class InputError(DiffMaskError, ValueError):
    """A batch, text or table that cannot be explained as it is."""


class ConfigError(DiffMaskError, ValueError):
    """A recipe or an experiment file with a wrong key, name or type."""


class SiteError(DiffMaskError, LookupError):
    """A site the model does not have, or one that a forward pass does not call exactly once."""


class TaskError(DiffMaskError, NotImplementedError):
    """Something asked of a task that it does not offer."""


class NumericsError(DiffMaskError, ArithmeticError):
    """A model or a score that is not a finite number."""


class MethodError(DiffMaskError, RuntimeError):
    """A method whose own code raised an error."""


class ExtraError(DiffMaskError, ImportError):
    """An optional library that is not installed."""


class StoreError(DiffMaskError, OSError):
    """An artefact that is missing, truncated or not ours."""


class EngineError(DiffMaskError, RuntimeError):
    """Workers that cannot be had, or that are gone."""


class RunError(DiffMaskError, RuntimeError):
    """A run of which a part failed; what was finished is kept and reported."""


class InputWarning(UserWarning):
    """An input of which only a part is explained."""


class TrainingWarning(UserWarning):
    """A training that does not begin where its reader may think."""


class FitWarning(UserWarning):
    """A fit whose explanations should not be believed as they are."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like `name`, as the end of an error message.

    >>> nearest("gradeint", ["gradient", "leave-one-out"])
    "nearest: 'gradient'; known: erasure, gradient"
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"nearest: '{close[0]}'; " if close else ""
    return f"{hint}known: {', '.join(names) or 'none'}"
