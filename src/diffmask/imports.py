"""Import heavy libraries with Python's garbage collector paused, so that it does not look at every new object."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the collector of reference cycles; objects made meanwhile then count as old.

    torch and transformers make about a million objects that stay until the process ends. The collector would traverse
    them again and again while they are imported, which takes a fifth of the time. A collector that the caller has
    paused stays paused.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # objects that the caller has frozen stay frozen
            # Moves everything to the oldest generation without traversing it; a full collection still frees it.
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def import_quickly(name: str) -> ModuleType:
    """Import a module, and what it imports, with the collector paused."""
    with paused_collector():
        return import_module(name)
