"""`dm.benchmark`: which explanation can be believed on this model?"""

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from diffmask.bench import Bench
from diffmask.benchmarking.assembly import assemble
from diffmask.benchmarking.plan import Named, Plan
from diffmask.benchmarking.work import work
from diffmask.board import Board
from diffmask.evaluation import Evaluation
from diffmask.explainer import Method
from diffmask.record import write_jsonl
from diffmask.run import versions
from diffmask.store import Store
from diffmask.task import Task, TaskRecipe

PART_ROWS = 32


def benchmark(
    task: Task | TaskRecipe,
    methods: Sequence[Named | Method] | None = None,
    evaluations: Sequence[Named | Evaluation] | None = None,
    *,
    texts: int = 200,
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    split: str = "test",
    budget: float | None = None,
    say: Callable[[str], None] = print,
) -> Board:
    """Methods compared on one model and some of its held-out texts, with a verdict.

    With `out` everything is kept there: run it again after a kill and it goes on. `say` is given the forecast.
    """
    plan = Plan.of(methods, evaluations, texts=texts, seeds=tuple(seeds), split=split, budget=budget)
    with ExitStack() as stack:
        folder = Path(out) if out is not None else Path(stack.enter_context(TemporaryDirectory()))
        board = run_plan(plan, task, Store(folder / "store"), say)
        if out is not None:
            board.save(folder)
    return board


def run_plan(plan: Plan, task: Task | TaskRecipe, store: Store, say: Callable[[str], None]) -> Board:
    """The board of a plan; what the store holds is not done again."""
    start = time.perf_counter()
    live = task if isinstance(task, Task) else Bench(store, task, plan.seeds[0]).task()
    held_out = plan.held_out(live)
    benches = [Bench.over(store, held_out, seed, PART_ROWS) for seed in plan.seeds]
    found = work(plan, benches)
    write_jsonl(store.root.parent / "records.jsonl", [record for done in found for _, record in done.measured])
    texts = len(held_out.data[plan.split])
    title = f"{benches[0].recipe.label}, {texts} texts"
    return assemble(title, plan, found, benches, manifest(plan, benches[0], time.perf_counter() - start))


def manifest(plan: Plan, bench: Bench, seconds: float) -> dict[str, Any]:
    """Everything needed to do it again."""
    return {
        "methods": [method.to_dict() for method in plan.methods],
        "evaluations": [evaluation.to_dict() for evaluation in plan.evaluations],
        "texts": len(bench.task().data[plan.split]),
        "split": plan.split,
        "seeds": list(plan.seeds),
        "budget": plan.budget,
        "task": bench.recipe.to_dict(),
        "versions": versions(),
        "system": f"{platform.system()} {platform.machine()}",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
