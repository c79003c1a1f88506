"""Curves, RACU and tables from records."""

from dataclasses import replace
from pathlib import Path

import pytest

from diffmask.record import Record, write_json, write_jsonl
from diffmask.report import Run, render
from diffmask.report.roar import draw, read_roar, write_roar
from diffmask.report.roar_curves import percent, roar_areas, roar_curves


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
    assert f"babi-1 & Gradient & {percent(area.racu)} \\\\" in text
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
    figure = draw(roar_curves([*records(), *counted]))
    assert [(panel.get_title(), panel.get_xlabel()) for panel in figure.axes] == [
        ("babi-1, Recursive", "% of tokens masked"),
        ("babi-1, Not recursive, by count", "tokens masked"),
    ]


def test_the_page_shows_curves_with_their_racu(tmp_path: Path) -> None:
    folder = both_models(tmp_path)
    run = read_roar(folder)
    (first, second), picture = run.tables(), run.picture()
    assert (first.title, second.title) == ("babi-1, bilstm: Recursive", "babi-1, bert: Recursive")
    name, points, racu = first.lines[1]
    assert name == "Gradient" and [round(100 * point.mean) for point in points] == [100, 25, 15]
    assert racu is not None and racu.mean == pytest.approx(0.65) and first.lines[0][2] is None
    manifest = {"experiment": {"name": "two models"}, "seeds": [0, 1], "seconds": 1.0, "finished": "now"}
    page = render(Run(folder, summary=[], examples=[], diagnostics=[], manifest=manifest))
    assert picture in page and "babi-1, bert: Recursive" in page and "65.0<br>" in page


def test_a_run_without_roar_writes_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "records.jsonl", records()[:1])
    assert not write_roar(tmp_path)
    assert not read_roar(tmp_path).tables() and not read_roar(tmp_path).picture()
