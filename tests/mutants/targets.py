"""Modules whose mutants are tested, the tests that should notice, and mutants that change nothing."""

TARGETS: dict[str, tuple[str, ...]] = {
    "methods/diffmask/hard_concrete": ("methods/test_hard_concrete.py",),
    "methods/diffmask/lagrangian": ("methods/test_lagrangian.py", "methods/test_per_input.py"),
    "methods/diffmask/elimination": ("methods/test_elimination.py",),
    "methods/diffmask/calibration": ("methods/test_threshold_search.py", "methods/test_mask_calibration.py"),
    "methods/noise/solver": ("methods/noise/test_solver_steps.py", "methods/noise/test_solver.py"),
    "core/batch": ("test_batch.py", "test_core_mutants.py"),
    "core/hooks": ("test_hooks.py", "test_core_mutants.py"),
    "core/store": ("test_store.py", "test_core_mutants.py"),
    "core/lock": ("test_lock.py",),
    "results/racu": ("test_racu.py", "test_core_mutants.py"),
    "results/comparison": ("test_comparison.py", "test_core_mutants.py"),
    "metrics/erasure": ("metrics/test_erasure.py",),
    "metrics/roar/masking": ("metrics/roar/test_masking.py",),
    "explanation/text_units": ("test_words.py", "test_core_mutants.py"),
}
"""Module by the files of its tests."""

EQUIVALENT: dict[str, tuple[tuple[str, str, str], ...]] = {
    "methods/diffmask/hard_concrete": (
        ("64", "64  ->  65", "one more point of the quadrature"),
        ("shut.low / shut.high", "-shut.low * shut.high", "the default upper bound is 1"),
    ),
    "methods/diffmask/calibration": (
        ("iter_traces(explainer.task, rows, 32)", "32  ->  33", "rows at once: memory, not values"),
    ),
    "results/comparison": (
        ("test.mean > 0", "test.mean >= 0", "a mean of 0 has returned before"),
        (
            "[0.0] * len(p_values)",
            "0.0  ->  1.0",
            "every element is overwritten",
        ),
    ),
    "core/store": (("json.dumps(note, indent=1)", "1  ->  2", "white space of a JSON file"),),
}
"""Mutants that compute the same, by module: a part of the line, a part of the change, and the reason."""
