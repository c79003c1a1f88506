"""`diffmask demo`: the main job on the packaged encoder and reviews."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the classifier, the explainer and the report.")] = Path(
        "runs/demo"
    ),
    rows: Annotated[int | None, typer.Option(min=1, help="Number of reviews to fine-tune on.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps of the explainer.")] = None,
) -> None:
    """Train a small classifier on packaged reviews, explain ten held-out sentences, and benchmark five methods.

    The command fine-tunes the packaged encoder and fits SurrogateMask. It prints which words each prediction needs, up
    to which layer, and whether the prediction survives without the others. It ends with a benchmark and its report. A
    killed run resumes.

    Example: diffmask demo --out runs/demo
    """
    from dataclasses import replace

    from diffmask.benchmarking.packaged_demo import METHOD, TASK, compare_methods, run_demo
    from diffmask.cli.options import configure_logging
    from diffmask.explanation.heatmap import html_document
    from diffmask.report.page import write_report
    from diffmask.results.records import write_text

    configure_logging(quiet=False)
    demonstration = run_demo(out, replace(TASK, rows=rows or TASK.rows), replace(METHOD, steps=steps or METHOD.steps))
    print(f"\n{demonstration.accuracy:.1%} of held-out reviews are classified right.\n")
    print("\n\n".join(demonstration.answer()), "\n")
    demonstration.explanations[0].show()
    page = out / "sentences.html"
    heatmaps = [explanation.heatmap() for explanation in demonstration.explanations]
    write_text(page, html_document("Words that the classifier needs", heatmaps))
    print(f"\nheat maps of all sentences: {page}\n")
    compare_methods(demonstration, out).show()
    print(f"\nreport: {write_report(out)}")
