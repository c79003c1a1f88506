"""Benchmark results and fitted explainers in a notebook cell, in the colours of the page."""

from collections.abc import Mapping
from html import escape
from typing import Any

from diffmask.report.leaderboard import Standing, standings
from diffmask.results.benchmark_result import BenchmarkResult, MethodResult, MetricInfo
from diffmask.results.formatting import format_duration, format_interval, format_number

STYLE = (
    ".diffmask-board{font:14px/1.5 system-ui,sans-serif;color:inherit;max-width:60em}"
    ".diffmask-board table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.8em 0}"
    ".diffmask-board th,.diffmask-board td{padding:3px 14px 3px 0;text-align:left;vertical-align:top;"
    "font-weight:normal;border:0;border-bottom:1px solid rgba(128,128,128,.3);background:none}"
    ".diffmask-board small,.diffmask-board .quiet{opacity:.7}.diffmask-board small{display:block}"
    ".diffmask-board .wide{overflow-x:auto}"
    ".diffmask-board .limits{border-left:3px solid #d98a1e;padding-left:1.6em}"
    "@media(max-width:480px){.diffmask-board th,.diffmask-board td{padding-right:7px;font-size:12px}}"
)


def render_notebook(board: BenchmarkResult) -> str:
    """Render verdict and table without script; all text is escaped."""
    verdict = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in board.verdict)
    limits = "".join(f"<li>{escape(warning)}</li>" for warning in board.warnings)
    return (
        f'<div class="diffmask-board"><style>{STYLE}</style><p><b dir="auto">{escape(board.title)}</b></p>{verdict}'
        + (f'<ul class="limits">{limits}</ul>' if limits else "")
        + f'<div class="wide">{_table(board)}</div><p class="quiet">{len(board.texts)} texts. '
        "<b>Bold</b>: better than every other method; =: tied for best. The whole report: "
        '<code>board.to_html("report.html")</code></p></div>'
    )


FIT_COLUMNS = {
    "margin": "margin",
    "hard_divergence": "KL of hard masks",
    "hard_agreement": "same prediction",
    "open_share": "words kept",
    "holding_share": "texts within the margin",
}
"""Headings of the diagnostics that a notebook shows; the report shows all."""


def render_fit(title: str, diagnostics: Mapping[str, Any]) -> str:
    """Render the diagnostics of a fit on held-out texts, one row per site, and its problems."""
    sites = {site: values for site, values in diagnostics.items() if isinstance(values, Mapping)}
    shown = [name for name in FIT_COLUMNS if any(name in values for values in sites.values())]
    problems = [
        f"<li>{escape(str(site))}: {escape(str(text))}</li>"
        for site, values in sites.items()
        for text in values.get("problems", {}).values()
    ]
    heads = "".join(f'<th scope="col">{FIT_COLUMNS[name]}</th>' for name in shown)
    rows = "".join(
        f'<tr><th scope="row">{escape(str(site))}</th>'
        + "".join(f"<td>{format_number(values[name]) if name in values else ''}</td>" for name in shown)
        + "</tr>"
        for site, values in sites.items()
    )
    table = (
        f'<div class="wide"><table><thead><tr><th scope="col">site</th>{heads}</tr></thead>'
        f'<tbody>{rows}</tbody></table></div><p class="quiet">Measured on held-out texts.</p>'
    )
    return (
        f'<div class="diffmask-board"><style>{STYLE}</style><p><b>{escape(title)}</b></p>'
        + (f'<ul class="limits">{"".join(problems)}</ul>' if problems else "")
        + (table if shown else "")
        + "</div>"
    )


def _table(board: BenchmarkResult) -> str:
    ranked = standings(board)
    heads = "".join(f'<th scope="col">{_heading(metric)}</th>' for metric in board.metrics)
    rows = "".join(
        f'<tr><th scope="row"><bdi>{escape(method.name)}</bdi></th>'
        + "".join(_cell(method, metric.name, ranked[metric.name]) for metric in board.metrics)
        + f"<td>{format_duration(method.cost['seconds']) if 'seconds' in method.cost else ''}</td></tr>"
        for method in board.methods
    )
    return (
        f'<table><thead><tr><th scope="col">method</th>{heads}<th scope="col">per text</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _heading(metric: MetricInfo) -> str:
    return (
        f"{escape(metric.title)}<small>{'↑' if metric.higher_is_better else '↓'} {metric.direction} is better</small>"
    )


def _cell(method: MethodResult, metric: str, standing: Standing) -> str:
    estimate = method.estimates.get(metric)
    if estimate is None:
        return '<td class="quiet">not measured</td>'
    mark = standing.mark(method.name)
    text = format_number(estimate.mean)
    mean = f"<b>{text}</b>" if mark == "best" else text + (" =" if mark == "tie" else "")
    return f"<td>{mean}<small>{format_interval(estimate.low, estimate.high)}</small></td>"
