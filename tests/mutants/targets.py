"""Modules whose mutants are tested, the tests that should notice, and mutants that change nothing."""

TARGETS: dict[str, tuple[str, ...]] = {
    "methods/diffmask/hard_concrete": ("methods/test_hard_concrete.py",),
    "methods/diffmask/lagrangian": ("methods/test_lagrangian.py", "methods/test_per_input.py"),
    "methods/diffmask/elimination": ("methods/test_elimination.py",),
    "methods/diffmask/calibration": ("methods/test_mask_calibration.py", "methods/test_elimination.py"),
    "methods/noise/solver": ("methods/noise/test_solver.py",),
    "core/batch": ("test_batch.py", "test_core_mutants.py"),
    "core/hooks": ("test_hooks.py", "test_core_mutants.py"),
    "core/store": ("test_store.py", "test_core_mutants.py"),
    "core/lock": ("test_lock.py",),
    "results/racu": ("test_racu.py",),
    "results/comparison": ("test_comparison.py", "test_core_mutants.py"),
    "metrics/erasure": ("metrics/test_erasure.py",),
    "metrics/roar/masking": ("metrics/roar/test_masking.py",),
    "explanation/text_units": ("test_words.py", "test_core_mutants.py"),
}
"""Module by the files of its tests."""

EQUIVALENT: dict[str, tuple[tuple[str, str], ...]] = {
    "methods/diffmask/hard_concrete": (("64  ->  65", "one more point of the quadrature"),),
}
"""Parts of changes, by module, that cannot be noticed: the mutant computes the same; with the reason."""
