"""One thing found out: a small table, as CSV and LaTeX, and as a figure where it is a curve. No torch here."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffmask.record import write_text
from diffmask.report.figures import write_figure
from diffmask.report.roar_curves import table

Cell = str | int | float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A table with a name for its files and a sentence for its reader."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    curves: tuple[str, ...] = ()
    """Columns that are drawn over the first one; none where there is nothing to draw."""

    def column(self, heading: str) -> list[Any]:
        """The values below a heading."""
        return [row[self.headings.index(heading)] for row in self.rows]

    def cells(self) -> list[list[str]]:
        """The values as they are read.

        >>> Finding(name="n", title="t", headings=("a", "b", "c"), rows=(("x", 3, 0.25),)).cells()
        [['x', '3', '0.250']]
        """
        return [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in self.rows]

    def write(self, folder: Path) -> list[Path]:
        """Files in `folder`: every digit in the CSV, a table for a paper, a figure."""
        stem = folder / self.name
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.headings, *self.rows])
        files = [stem.with_suffix(".csv"), stem.with_suffix(".tex")]
        write_text(files[0], text.getvalue())
        write_text(files[1], table(self.headings, self.cells()))
        return [*files, *(write_figure(self._draw, stem) if self.curves else [])]

    def _draw(self, _: Any, axes: Any) -> None:
        for heading in self.curves:
            axes.plot(self.column(self.headings[0]), self.column(heading), marker="o", markersize=3, label=heading)
        axes.set(xlabel=self.headings[0], title=self.title)
        axes.title.set_fontsize(9)
        axes.legend(frameon=False, fontsize=8)
