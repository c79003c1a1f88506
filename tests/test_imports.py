"""The collector is paused while heavy modules are imported, and is left as it was found."""

import gc
import weakref

import pytest

from diffmask.imports import import_quickly, paused_collector


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_the_collector_is_paused_and_runs_again_also_after_an_error() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError):
        import_quickly("diffmask.no_such_module")
    assert gc.isenabled()


def test_a_cycle_made_meanwhile_is_freed_by_a_later_full_collection() -> None:
    with paused_collector():
        ghost = weakref.ref(Cycle())
    assert gc.get_freeze_count() == 0 and ghost() is not None
    gc.collect()
    assert ghost() is None


def test_a_collector_that_the_caller_paused_or_froze_stays_so() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with paused_collector():
            pass
        assert gc.isenabled() and gc.get_freeze_count() >= frozen - 100  # frozen objects may die by themselves
    finally:
        gc.unfreeze()


def test_it_imports_the_module() -> None:
    assert import_quickly("diffmask.errors").__name__ == "diffmask.errors"
