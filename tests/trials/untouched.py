"""Errors and interrupts during explanations and fits: the model and the process must be as they were."""

import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from diffmask.core.explainer import Explainer
from diffmask.core.task import Task
from trials.count import Count, each_fitted, method, parts_task, small_task, toy_task

AFTER = (0, 1, 2, 5, 12)
"""Forward passes before an injected error."""
MOMENTS = 6
"""Interrupts at random moments, per method and kind of work."""


def run(seed: int) -> Count:
    """Interrupt every method in its passes and at random moments, and compare the model with what it was."""
    count, source = Count("model untouched after errors and interrupts: trials"), random.Random(seed)

    def visit(name: str, task: Task, explainer: Explainer) -> None:
        batch = task.data["test"][:3]
        work: dict[str, Callable[[], Any]] = {
            "explain": lambda: explainer(batch),
            "fit": lambda: method(name).fit(task, seed, keep_interrupted=False),
        }
        for kind, act in work.items():
            for after in AFTER:
                for error in (ZeroDivisionError, KeyboardInterrupt):
                    with failing(task.model, after, error):
                        failure = _difference(task.model, act, error)
                    count.add(f"{name}, {kind}, {error.__name__} in pass {after}", failure)
            duration = _seconds(act)
            for _ in range(MOMENTS):
                moment = source.uniform(0, duration)
                failure = _difference(task.model, interrupted(act, moment), KeyboardInterrupt)
                count.add(f"{name}, {kind}, Ctrl-C after {1000 * moment:.1f} ms", failure)

    each_fitted([small_task(), parts_task(), toy_task()], count, seed, visit)
    return count


def _difference(model: nn.Module, act: Callable[[], Any], expected: type[BaseException]) -> str | None:
    """Run the work and return what has changed, if anything."""
    before = picture(model)
    try:
        act()
    except expected:
        pass
    except BaseException as error:
        return f"ended with {type(error).__name__}: {error}"
    after = picture(model)
    changed = [name for name in before if before[name] != after[name]]
    return f"changed: {', '.join(changed)}" if changed else None


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


def picture(model: nn.Module) -> dict[str, Any]:
    """Everything about a model and the process that an explanation could leave behind."""
    modules = dict(model.named_modules())
    # The hook that injects the error belongs to the trial.
    return {
        "mode": [module.training for module in modules.values()],
        "hooks": [(name, [len(getattr(module, kind)) for kind in HOOKS]) for name, module in modules.items()],
        "replaced functions": [name for name, module in modules.items() if "forward" in vars(module)],
        "weights": [value.detach().numpy().tobytes() for value in (*model.parameters(), *model.buffers())],
        "gradients": [(value.requires_grad, value.grad) for value in model.parameters()],
        "attention kernel": getattr(getattr(model, "config", None), "_attn_implementation", None),
        "torch's random numbers": torch.random.get_rng_state().numpy().tobytes(),
        "numpy's random numbers": repr(np.random.get_state()),
        "Python's random numbers": random.getstate(),
        "environment": dict(os.environ),
        "grad mode": torch.is_grad_enabled(),
        "warning filters": list(warnings.filters),
    }


@contextmanager
def failing(model: nn.Module, after: int, error: type[BaseException]) -> Iterator[None]:
    """Within this block the model raises an error once it has been called `after` times."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error

    hook = model.register_forward_pre_hook(count)
    try:
        yield
    finally:
        hook.remove()


def interrupted(act: Callable[[], Any], seconds: float) -> Callable[[], None]:
    """Return the work with a KeyboardInterrupt after some time, wherever the program then is within the work."""
    running = False

    def interrupt(*_: Any) -> None:
        if running:
            raise KeyboardInterrupt

    def run() -> None:
        nonlocal running
        previous = signal.signal(signal.SIGALRM, interrupt)
        try:
            running = True
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            act()
            running = False
        finally:
            running = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    return run


def _seconds(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start
