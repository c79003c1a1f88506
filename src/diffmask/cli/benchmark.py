"""`diffmask benchmark`: compare explanation methods on a classifier."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from diffmask.cli import options
from diffmask.cli.options import overrides

DEFAULT_METHODS = "random,gradient,input-x-gradient,integrated-gradients,leave-one-out"
Methods = Annotated[
    str,
    typer.Option(
        help="Names from `diffmask list methods`, separated by commas; 'random' is always added. Default: "
        f"{DEFAULT_METHODS.replace(',', ', ')}.",
        show_default=False,
    ),
]
Metrics = Annotated[str, typer.Option(help="Names from `diffmask list metrics`, separated by commas.")]
Texts = Annotated[int, typer.Option(min=1, help="Number of held-out texts to explain; a verdict needs at least 30.")]
Seeds = Annotated[str, typer.Option(help="Random seeds of the methods, separated by commas.")]
Budget = Annotated[
    float | None, typer.Option(help="Rows that each method may send through the model per text, forward and backward.")
]
Out = Annotated[Path, typer.Option(help="Folder for the result, its records and its report.")]
Overrides = Annotated[
    list[str] | None,
    overrides(
        "Options of a method or metric, such as surrogate-mask.steps=500, comprehensiveness.mode=delete, or of the "
        "task, such as max_tokens=128, text_column=review."
    ),
]


@options.expand_groups
def benchmark_command(
    model: options.Model,
    data: options.Data,
    methods: Methods = DEFAULT_METHODS,
    metrics: Metrics = "comprehensiveness",
    texts: Texts = 200,
    seeds: Seeds = "0",
    budget: Budget = None,
    out: Out = Path("runs/benchmark"),
    *,
    execution: options.ExecutorOptions,
    columns: options.LabelledColumns,
    quiet: options.Quiet = False,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Also test whether the metrics rank degraded explanations correctly.")
    ] = False,
    task: options.TaskName = None,
    trust_remote_code: options.TrustRemoteCode = False,
    choices: Overrides = None,
) -> None:
    """Compare explanation methods on your classifier and your texts, with a table and a verdict.

    The command forecasts its duration, explains held-out texts by every method, computes every metric, and reports
    which methods beat a random order, which of them differ, and their cost. A killed run resumes when it is started
    again with the same --out.

    Example: diffmask benchmark --model clf/ --data reviews.csv --methods gradient,captum:Lime,surrogate-mask --out run/

    Equal cost: diffmask benchmark --model clf/ --data reviews.csv --budget 100 --out run/

    Options: diffmask benchmark --model clf/ --data reviews.csv --methods surrogate-mask surrogate-mask.steps=500
    """
    # The serial engine is the library's default, which uses all threads.
    serial = execution.engine == "serial" and execution.workers is None
    executor = None if serial else execution.executor()
    names = methods.split(","), metrics.split(",")
    limits = {"texts": texts, "seeds": options.parse_seeds(seeds), "budget": budget, "executor": executor}
    limits["self_test"] = self_test
    chosen = columns.with_overrides(choices)
    _run({"model": model, "data": data}, task, trust_remote_code, names, chosen, out, quiet, **limits)


def _run(
    chosen: dict[str, str],
    task: str | None,
    trust_remote_code: bool,
    names: tuple[list[str], list[str]],
    choices: list[str],
    out: Path,
    quiet: bool,
    **arguments: object,
) -> None:
    from diffmask.benchmarking.benchmark_config import sort_overrides
    from diffmask.benchmarking.compare_methods import benchmark as run_benchmark
    from diffmask.report.page import write_report
    from diffmask.tasks.text.known_tasks import trained_config_class

    options.require_folder(out, [], force=True)
    task_options, chosen_methods, chosen_metrics = sort_overrides(choices, *names)
    kind = trained_config_class(task, chosen["model"], trust_remote_code=trust_remote_code)
    config = kind.from_dict({**chosen, **task_options}, "benchmark")
    result = run_benchmark(
        replace(config, trust_remote_code=trust_remote_code),
        chosen_methods,
        chosen_metrics,
        out=out,
        view=options.progress_view(quiet),
        **arguments,  # type: ignore[arg-type]  # the arguments of `benchmark` by name
    )
    print(f"\n{result}\n\nresult: {out / 'results.json'}")
    if not result.metrics:
        print("diffmask: no metric could be computed; the warnings above give the reasons", file=sys.stderr)
        raise typer.Exit(1)
    print(f"report: {write_report(out)}")
