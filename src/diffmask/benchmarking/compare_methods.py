"""`diffmask.benchmark`: compare explanation methods on one model, with a verdict."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from diffmask.benchmarking.benchmark_config import BenchmarkConfig, Named
from diffmask.benchmarking.forecast import forecast, within_budget
from diffmask.core.explainer import Method
from diffmask.core.progress import stage
from diffmask.core.store import Store
from diffmask.core.task import Task, TaskConfig
from diffmask.errors import ConfigError
from diffmask.experiments.executors.executor import Executor
from diffmask.experiments.executors.local import SerialExecutor
from diffmask.experiments.executors.progress_view import ProgressView, default_view
from diffmask.experiments.experiment import Experiment
from diffmask.experiments.result_builder import build_results
from diffmask.experiments.runner import execute
from diffmask.metrics.metric import Metric
from diffmask.metrics.self_test import describe
from diffmask.metrics.self_test import self_test as test_metrics
from diffmask.report.page import write_page
from diffmask.results.benchmark_result import BenchmarkResult
from diffmask.results.records import require_path
from diffmask.workspace.workspace import InMemoryTaskConfig, Workspace

SHARD_SIZE = 32
"""Texts per shard: a killed run explains at most this many again."""


def print_now(text: str) -> None:
    """Print and flush, so that a forecast appears before the work."""
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
    executor: Executor | None = None,
    view: ProgressView | None = None,
    say: Callable[[str], None] = print_now,
    self_test: bool = False,
) -> BenchmarkResult:
    """Compare methods on one model and some of its held-out texts.

    With `out`, everything is kept in that folder, and a killed run resumes. `say` receives the forecast. An executor
    of other processes needs the task as a config, which its workers load again. `self_test` adds a paragraph to the
    verdict: which metrics rank degraded explanations in their known order, and so can be relied on.
    """
    config = BenchmarkConfig.of(methods, metrics, texts=texts, seeds=seeds, split=split, budget=budget)
    if out is not None:
        require_path(out)
    if isinstance(task, Task) and executor is not None and not executor.in_process:
        raise ConfigError(
            f"{type(executor).__name__} runs other processes, which cannot use a task in memory; give the task as a "
            "config, such as TextClassificationConfig, or use the serial executor"
        )
    with ExitStack() as stack:
        folder = Path(out) if out is not None else Path(stack.enter_context(TemporaryDirectory()))
        result = run_benchmark(config, task, folder.resolve(), executor, view, say, self_test)
        if out is not None:
            result.save(folder)
            write_page(folder)
    return result


def run_benchmark(
    config: BenchmarkConfig,
    task: Task | TaskConfig,
    folder: Path,
    executor: Executor | None,
    view: ProgressView | None,
    say: Callable[[str], None],
    self_test: bool = False,
) -> BenchmarkResult:
    """Build an experiment of one task, run its missing nodes, and return the result."""
    store = Store(folder / "store")
    held_out, source = _held_out_task(config, task, store)
    config, left_out = within_budget(config, held_out)
    experiment = Experiment(
        name="benchmark",
        tasks=(InMemoryTaskConfig.of(held_out, source),),
        methods=config.methods,
        metrics=config.metrics,
        seeds=config.seeds,
        explained_split=config.split,
        shard_size=SHARD_SIZE,
    )
    workspaces = experiment.workspaces(store)
    expected = forecast(config, workspaces)
    say(str(expected))
    details = {
        "texts": len(held_out.data[config.split]),
        "split": config.split,
        "budget": config.budget,
        "forecast_seconds": round(expected.seconds, 1),
    }
    # All threads of this process: the costs in the result are those that a user of the library pays.
    chosen = executor or SerialExecutor(threads=torch.get_num_threads())
    result = execute(experiment, workspaces, folder, chosen, view or default_view(), details)
    with stage("compare the methods"):
        (built,) = build_results(experiment, workspaces, result, folder)
    with stage("test the metrics"):
        reliability = [describe(test_metrics(workspaces[0], config.metrics))] if self_test else []
    return replace(built, warnings=[*built.warnings, *left_out], verdict=[*built.verdict, *reliability])


@dataclass(frozen=True)
class TaskSource:
    """Loads the task of a benchmark again in a worker process."""

    config: TaskConfig
    store: Store
    benchmark: BenchmarkConfig

    def __call__(self) -> Task:
        """Return the task with only the texts that are explained."""
        return self.benchmark.held_out(_load_task(self.config, self.store, self.benchmark.seeds[0]))


def _held_out_task(config: BenchmarkConfig, task: Task | TaskConfig, store: Store) -> tuple[Task, TaskSource | None]:
    """Return the task with only the texts that are explained, and the source from which a worker loads it."""
    if isinstance(task, Task):
        return config.held_out(task), None
    source = TaskSource(task, store, config)
    return source(), source


def _load_task(config: TaskConfig, store: Store, seed: int) -> Task:
    """Load a task; trained weights are kept in the store, weights that were only loaded are not."""
    trains = type(config).train is not TaskConfig.train
    return Workspace(store, config, seed).task() if trains else config.load(seed)
