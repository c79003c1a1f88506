"""Curves, RACU and tables from records."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffmask.cli import app
from diffmask.report.page import render_page
from diffmask.report.roar_curves import format_percent, plot_roar, read_roar, roar_areas, roar_curves, write_roar
from diffmask.report.run_files import RunFiles
from diffmask.results.records import Record, write_json, write_jsonl


def records() -> list[Record]:
    found = []
    for seed in (0, 1):
        found.append(Record(task="babi-1", method="model", site="", metric="quality", value=1.0, seed=seed, rows=1000))
        for method, low in (("random", 0.5), ("gradient (one_hot)", 0.2 + 0.1 * seed)):
            for at, value in ((0.0, 1.0), (50.0, low), (100.0, 0.15)):
                found.append(
                    Record(
                        task="babi-1",
                        method=method,
                        site="",
                        metric="recursive_roar_score",
                        value=value,
                        seed=seed,
                        at=at,
                    )
                )
        for part, value in (("racu", 0.6 + 0.1 * seed), ("racu_clipped", 0.6), ("area", 0.2), ("area_possible", 0.3)):
            metric = f"recursive_roar_{part}"
            found.append(
                Record(task="babi-1", method="gradient (one_hot)", site="", metric=metric, value=value, seed=seed)
            )
    return found


def test_a_curve_is_the_mean_over_seeds() -> None:
    gradient = next(curve for curve in roar_curves(records()) if curve.method.startswith("gradient"))
    assert gradient.at == (0.0, 50.0, 100.0)
    assert [point.mean for point in gradient.points] == pytest.approx([1.0, 0.25, 0.15])
    assert gradient.points[1].low == pytest.approx(0.2)


def test_racu_is_the_mean_of_the_seeds_own() -> None:
    (area,) = roar_areas(records())
    assert area.racu.mean == pytest.approx(0.65)
    assert area.possible.mean == pytest.approx(0.3)


def test_tables_and_figures_are_written(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "records.jsonl", records())
    names = [file.name for file in write_roar(tmp_path)]
    assert names == ["racu.tex", "performance.tex", "roar.png", "roar.pdf"]
    (area,) = roar_areas(records())
    text = (tmp_path / "tables" / "racu.tex").read_text()
    assert f"babi-1 & Gradient & {format_percent(area.racu)} \\\\" in text
    assert "babi-1 &  & 1000 & $100.0" in (tmp_path / "tables" / "performance.tex").read_text()
    assert (tmp_path / "plots" / "roar.png").stat().st_size > 5000


def both_models(tmp_path: Path) -> Path:
    first = [replace(record, task="babi-1 bilstm") for record in records()]
    other = [replace(record, task="babi-1 bert", value=record.value / 2) for record in records()]
    write_jsonl(tmp_path / "records.jsonl", [*first, *other])
    panels = {"babi-1 bilstm": ["babi-1", "bilstm"], "babi-1 bert": ["babi-1", "bert"]}
    write_json(tmp_path / "manifest.json", {"panels": panels})
    return tmp_path


def test_a_second_model_of_a_data_set_is_a_second_column(tmp_path: Path) -> None:
    write_roar(both_models(tmp_path))
    heading, line = (tmp_path / "tables" / "racu.tex").read_text().splitlines()[2:5:2]
    assert heading == r"Data set & Importance measure & bilstm: Recursive & bert: Recursive \\"
    assert line.startswith("babi-1 & Gradient & $65.0") and "& $32.5" in line
    lines = (tmp_path / "tables" / "performance.tex").read_text().splitlines()[4:6]
    assert [line.split(" & ")[:3] for line in lines] == [["babi-1", "bilstm", "1000"], ["babi-1", "bert", "1000"]]


def test_panels_are_data_sets_by_models_and_variants() -> None:
    counted = [
        replace(record, metric="roar_count_score", at=record.at) for record in records() if record.at is not None
    ]
    figure = plot_roar(roar_curves([*records(), *counted]))
    assert [(panel.get_title(), panel.get_xlabel()) for panel in figure.axes] == [
        ("babi-1, Recursive", "% of tokens masked"),
        ("babi-1, Not recursive, by count", "tokens masked"),
    ]


def test_the_page_shows_curves_with_their_racu(tmp_path: Path) -> None:
    folder = both_models(tmp_path)
    run = read_roar(folder)
    (first, second), picture = run.tables(), run.picture()
    assert (first.title, second.title) == ("babi-1, bilstm: Recursive", "babi-1, bert: Recursive")
    assert [curve.title for curve in first.curves] == ["Random", "Gradient"]
    assert [round(100 * point.mean) for point in first.curves[1].points] == [100, 25, 15]
    (area,) = first.areas
    assert area.title == "Gradient" and area.seeds == pytest.approx((0.6, 0.7))
    manifest = {"experiment": {"name": "two models"}, "seeds": [0, 1], "seconds": 1.0, "finished": "now"}
    page = render_page([], RunFiles(folder, summary=[], examples=[], manifest=manifest))
    assert picture in page and "babi-1, bert: Recursive" in page and ">65.0</td>" in page and "60.0 70.0" in page


def test_a_table_leaves_to_roar_what_is_said_there(tmp_path: Path) -> None:
    folder = both_models(tmp_path)
    found = {"task": "babi-1", "site": "", "mean": 0.5, "interval": [0.4, 0.6], "seeds": 2, "cost": {}}
    summary = [
        {**found, "method": "model", "metric": "quality"},
        {**found, "method": "gradient (one_hot)", "metric": "recursive_roar_racu"},
    ]
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"experiment": {"name": "two models"}, "seeds": [0, 1], "seconds": 1.0, "finished": "now"}
    for name, content in {"summary": summary, "examples": [], "results": [], "manifest": manifest}.items():
        write_json(folder / f"{name}.json", content)
    printed = CliRunner().invoke(app, ["report", str(folder)]).output
    page = (folder / "report.html").read_text()
    for text in (printed, page):
        assert "quality" in text and "one_hot" not in text and "recursive roar racu" not in text
    assert "Masks by site" not in page and "One example" not in page
    assert re.search(r"babi-1, bert: Recursive.*50 +25.0 +12.5.*RACU +32.5", printed, re.DOTALL)


def test_a_method_has_one_colour_in_every_panel_and_a_name_of_its_own() -> None:
    curved = [record for record in records() if record.at is not None]
    lime = [replace(record, method="lime") for record in curved if record.method == "random"]
    plain = [replace(record, method="gradient", metric="roar_score") for record in curved if record.method != "random"]
    alone = [replace(record, metric="roar_score") for record in lime]
    figure = plot_roar(roar_curves([*curved, *plain, *lime, *alone]))
    colours = [{line.get_label(): line.get_color() for line in panel.lines} for panel in figure.axes]
    assert [set(panel) for panel in colours] == [{"gradient", "lime"}, {"Random", "gradient (one_hot)", "lime"}]
    assert colours[0]["lime"] == colours[1]["lime"]
    assert len({*colours[0].values(), *colours[1].values()}) == 4


def test_what_was_not_measured_is_left_open(tmp_path: Path) -> None:
    partly = [record for record in records() if record.at != 50.0 or record.method == "random"]
    write_jsonl(tmp_path / "records.jsonl", partly)
    (table,) = read_roar(tmp_path).tables()
    assert table.at == [0.0, 50.0, 100.0]
    assert [curve.point(50.0) is None for curve in table.curves] == [False, True]


def test_a_run_without_roar_writes_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "records.jsonl", records()[:1])
    assert not write_roar(tmp_path)
    assert not read_roar(tmp_path).tables() and not read_roar(tmp_path).picture()
