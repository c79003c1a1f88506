"""`diffmask demo`: the main job on the packaged encoder and reviews."""

from pathlib import Path
from typing import Annotated

import typer


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the classifier, the explainer and the report.")] = Path(
        "runs/demo"
    ),
    rows: Annotated[int | None, typer.Option(min=1, help="Number of reviews to fine-tune on.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps of the explainer.")] = None,
) -> None:
    """Train a small classifier on packaged reviews, explain held-out reviews, and benchmark five methods.

    The command fine-tunes the packaged encoder and shows the words that one prediction needs. It then fits
    SurrogateMask and prints for ten held-out reviews which words are enough and whether the prediction survives without
    the others. It ends with a benchmark and its report. A killed run resumes.

    Example: diffmask demo --out runs/demo
    """
    print("1. Fine-tune MiniLM on short film reviews: positive or negative?", flush=True)
    from dataclasses import replace

    from diffmask.benchmarking.packaged_demo import (
        METHOD,
        TASK,
        compare_methods,
        first_explanation,
        run_demo,
        train_classifier,
    )
    from diffmask.cli.options import configure_logging
    from diffmask.explanation.heatmap import html_document
    from diffmask.report.page import write_report
    from diffmask.results.records import write_text

    configure_logging(quiet=False)
    config, method = replace(TASK, rows=rows), replace(METHOD, steps=steps or METHOD.steps)
    task = train_classifier(out, config)
    test = task.data["test"]
    print(f"{task.score(test):.1%} of {len(test)} held-out reviews are classified correctly.\n")
    print("2. Which words does one prediction need? (leave-one-out, no fit)\n", flush=True)
    first_explanation(task, config).show()
    print(
        "\n3. Fit SurrogateMask, which then scores a review in one forward pass, and explain held-out reviews.",
        flush=True,
    )
    demonstration = run_demo(task, out, config, method)
    print("\n" + "\n\n".join(demonstration.answer()), "\n")
    page = out / "reviews.html"
    heatmaps = [explanation.heatmap() for explanation in demonstration.explanations]
    write_text(page, html_document("Words that the classifier needs", heatmaps))
    print(f"heat maps of all reviews: {page}\n\n4. Which method can be believed?", flush=True)
    compare_methods(demonstration, out).show()
    print(f"\nreport: {write_report(out)}")
