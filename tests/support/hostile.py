"""A board whose every text tries to be more than text."""

from dataclasses import replace

from diffmask.results.benchmark_result import BenchmarkResult, BenchmarkText
from support.board import synthetic_board

SCRIPT = "<script>window.hacked = true; alert('hacked')</script>"
IMAGE = '<img src=x onerror="window.hacked = true">\'"`'
CLOSING = "</script></style></textarea><!--<script>window.hacked = true</script>"
BIDI = "\u202egnisrever\u2066\u200f"
LONG = "a" * 10_000
WORDS = (SCRIPT, IMAGE, CLOSING, BIDI, LONG, "&lt;b&gt;", "{{ 7 * 7 }}", "\u2028", "$&", "end")


def hostile_board() -> BenchmarkResult:
    """Hostile in its title, verdict, warnings, names, classes, words and manifest."""
    board = synthetic_board(texts=2)
    names = {
        method.name: f"{method.name} {IMAGE}" if method.name == "diffmask" else method.name for method in board.methods
    }
    return replace(
        board,
        title=f"title {SCRIPT}",
        verdict=[f"verdict {CLOSING}"],
        warnings=[IMAGE],
        methods=[replace(one, name=names[one.name], config={"name": "x", "y": SCRIPT}) for one in board.methods],
        curves=[replace(curve, method=names[curve.method], x_label=SCRIPT) for curve in board.curves],
        comparisons=[],
        texts=[_text(list(names.values()))],
        manifest={"note": CLOSING, SCRIPT: BIDI},
    )  # fmt: skip


def _text(names: list[str]) -> BenchmarkText:
    scores = [float(place) for place in range(len(WORDS))]
    return BenchmarkText(
        words=WORDS,
        gaps=["", *(" " for _ in WORDS[1:]), SCRIPT],
        gold=SCRIPT,
        prediction=IMAGE,
        probability=0.5,
        scores=dict.fromkeys(names, scores),
        by_layer={names[-1]: [scores, scores[::-1]]},
        layers={names[-1]: [SCRIPT, BIDI]},
    )
