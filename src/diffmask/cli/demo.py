"""`diffmask demo`: the main job on the packaged encoder and reviews."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the classifier, the explainer and the page.")] = Path(
        "runs/demo"
    ),
    rows: Annotated[int | None, typer.Option(help="Reviews to fine-tune on.")] = None,
    steps: Annotated[int | None, typer.Option(help="Batches of reviews that SurrogateMask learns from.")] = None,
) -> None:
    """Fine-tune a packaged encoder on packaged reviews, fit SurrogateMask, explain ten held-out sentences, benchmark.

    Opens with the answer: which words were needed, until which layer, and whether the predictions survive without the
    rest. Ends with a benchmark of five methods and its report. Kill it and run it again: it goes on where it was.

    Example: diffmask demo --out runs/demo
    """
    from dataclasses import replace

    from diffmask.benchmarking.demo import METHOD, TASK, compare_methods, run_demo
    from diffmask.cli.options import configure_logging
    from diffmask.explanation.heatmap import html_document
    from diffmask.report.benchmark_page import write_benchmark_report
    from diffmask.results.records import write_text

    configure_logging(quiet=False)
    found = run_demo(out, replace(TASK, rows=rows or TASK.rows), replace(METHOD, steps=steps or METHOD.steps))
    print(f"\n{found.accuracy:.1%} of held-out reviews are classified right.\n")
    print("\n\n".join(found.answer()), "\n")
    found.explanations[0].show()
    page = out / "sentences.html"
    write_text(
        page, html_document("What the classifier needs", [explanation.heatmap() for explanation in found.explanations])
    )
    print(f"\nheat maps of all sentences: {page}\n")
    compare_methods(found, out).show()
    print(f"\nreport: {write_benchmark_report(out)}")
