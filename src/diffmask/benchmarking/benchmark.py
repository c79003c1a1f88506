"""`dm.benchmark`: which explanation can be believed on this model?"""

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from diffmask.benchmarking.config import BenchmarkConfig, Named
from diffmask.benchmarking.forecast import forecast, within_budget
from diffmask.benchmarking.result_builder import assemble
from diffmask.benchmarking.work import work
from diffmask.core.explainer import Method
from diffmask.core.store import Store
from diffmask.core.task import Task, TaskConfig
from diffmask.experiments.run import versions
from diffmask.metrics.base import Metric
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.results.records import write_jsonl
from diffmask.workspace.workspace import Workspace

PART_ROWS = 32


def tell(text: str) -> None:
    """Print at once: a forecast that waits in a buffer is none."""
    print(text, flush=True)


def benchmark(
    task: Task | TaskConfig,
    methods: Sequence[Named | Method] | None = None,
    metrics: Sequence[Named | Metric] | None = None,
    *,
    texts: int = 200,
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    split: str = "test",
    budget: int | float | None = None,
    say: Callable[[str], None] = tell,
) -> BenchmarkResult:
    """Methods compared on one model and some of its held-out texts, with a verdict.

    With `out` everything is kept there: run it again after a kill and it goes on. `say` is given the forecast.
    """
    plan = BenchmarkConfig.of(methods, metrics, texts=texts, seeds=tuple(seeds), split=split, budget=budget)
    with ExitStack() as stack:
        folder = Path(out) if out is not None else Path(stack.enter_context(TemporaryDirectory()))
        board = run_plan(plan, task, Store(folder / "store"), say)
        if out is not None:
            board.save(folder)
    return board


def run_plan(
    plan: BenchmarkConfig, task: Task | TaskConfig, store: Store, say: Callable[[str], None]
) -> BenchmarkResult:
    """The board of a plan; what the store holds is not done again."""
    held_out = plan.held_out(_live(task, store, plan.seeds[0]))
    plan, too_dear = within_budget(plan, held_out)
    workspaces = [Workspace.over(store, held_out, seed, PART_ROWS) for seed in plan.seeds]
    expected = forecast(plan, workspaces)
    say(str(expected))
    start = time.perf_counter()
    found = work(plan, workspaces)
    write_jsonl(store.root.parent / "records.jsonl", [record for done in found for _, record in done.measured])
    texts = len(held_out.data[plan.split])
    title = f"{workspaces[0].task_config.label}, {texts} texts"
    kept = {**manifest(plan, workspaces[0]), "forecast_seconds": round(expected.seconds, 1)}
    board = assemble(title, plan, found, workspaces, kept)
    spent = {**kept, "seconds": round(time.perf_counter() - start, 1)}
    return replace(board, warnings=[*board.warnings, *too_dear], manifest=spent)


def _live(task: Task | TaskConfig, store: Store, seed: int) -> Task:
    """The task itself; what a recipe trains is kept, what it only loads is not."""
    if isinstance(task, Task):
        return task
    return task.load(seed) if type(task).train is TaskConfig.train else Workspace(store, task, seed).task()


def manifest(plan: BenchmarkConfig, workspace: Workspace) -> dict[str, Any]:
    """Everything needed to do it again."""
    return {
        "methods": [method.to_dict() for method in plan.methods],
        "metrics": [metric.to_dict() for metric in plan.metrics],
        "texts": len(workspace.task().data[plan.split]),
        "split": plan.split,
        "seeds": list(plan.seeds),
        "budget": plan.budget,
        "task": workspace.task_config.to_dict(),
        "versions": versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
