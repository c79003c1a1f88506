"""A `BenchmarkResult`: methods side by side on one task, with a verdict. Plain values only; no torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diffmask.errors import InputError
from diffmask.results.records import write_json, write_text


@dataclass(frozen=True, kw_only=True)
class MetricInfo:
    """Name, direction, interpretation and limits of one number that methods are compared by."""

    name: str
    """Equal to `Record.metric` of the records that hold the number."""
    title: str
    """Name in tables and sentences."""
    higher_is_better: bool
    interpretation: str
    """Meaning of a good value, in one sentence."""
    limitation: str
    """Conclusion that a good value does not allow, in one sentence."""
    x_label: str = "share of tokens"
    """Label of the x axis of its curve, if it has one."""
    curve: str = ""
    """Name of the metric on the curve, if it differs from `name`."""
    relative_to_random: bool = False
    """Whether the values are relative to the random baseline, which then has the value 0."""

    @property
    def direction(self) -> str:
        """Return `higher` or `lower`: the direction in which values are better."""
        return "higher" if self.higher_is_better else "lower"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float
    rows: int
    seeds: int = 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two methods on one measure: mean of first less second over the same rows."""

    metric: str
    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    """Corrected for the number of comparisons."""
    winner: str | None
    """The better of the two; none is a tie."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure against the share of tokens erased, or another knob."""

    metric: str
    method: str
    x_label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One line of the table."""

    name: str
    """Short and unique on the board."""
    recipe: Mapping[str, Any]
    estimates: Mapping[str, Estimate]
    """By measure's name; a measure that does not apply is absent."""
    cost: Mapping[str, float]
    """Per text: forwards, backwards, seconds; in all: fit_seconds, peak_megabytes, break_even (texts, if ever)."""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    """Of the fit, where there was one."""


@dataclass(frozen=True, kw_only=True)
class BoardText:
    """One held-out text as every method sees it."""

    words: Sequence[str]
    gaps: Sequence[str]
    """What stands before each word, and after the last: one more than there are words."""
    gold: str | None
    prediction: str
    probability: float
    scores: Mapping[str, Sequence[float]]
    """By method's name, a score a word."""
    by_layer: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """By method's name, layer by layer, a score a word."""
    layers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By method's name, the layers' names."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """Everything a report shows."""

    title: str
    verdict: Sequence[str]
    """Paragraphs; the first can be quoted alone."""
    warnings: Sequence[str]
    """What limits the verdict: too few rows, erased input out of distribution, a fit that failed."""
    metrics: Sequence[MetricInfo]
    methods: Sequence[MethodResult]
    comparisons: Sequence[Comparison]
    curves: Sequence[Curve]
    agreement: Mapping[str, Sequence[Sequence[float]]]
    """By kind (rank correlation, overlap of the top words), methods x methods in the order of `methods`."""
    texts: Sequence[BoardText]
    manifest: Mapping[str, Any]

    def save(self, folder: str | Path) -> Path:
        """Write `board.json`; returns its path."""
        file = Path(folder) / "board.json"
        write_json(file, asdict(self))
        return file

    @staticmethod
    def load(folder: str | Path) -> "BenchmarkResult":
        """The board that `save` wrote, or an error that names the file."""
        from pydantic import TypeAdapter, ValidationError

        file = Path(folder) / "board.json"
        if not file.is_file():
            raise InputError(f"{file} is missing: give the --out folder of a finished `diffmask benchmark`")
        try:
            return TypeAdapter(BenchmarkResult).validate_json(file.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(f"{file} is no board: {place or 'the file'}: {first['msg']}") from None

    def to_html(self, file: str | Path) -> Path:
        """Write the report, one page that needs nothing else; returns its path."""
        from diffmask.report.benchmark_page import render_benchmark

        write_text(Path(file), render_benchmark(self))
        return Path(file)

    def show(self) -> None:
        """Print the verdict and the table."""
        from diffmask.report.terminal import print_benchmark

        print_benchmark(self)

    def __str__(self) -> str:
        from diffmask.report.terminal import benchmark_as_text

        return benchmark_as_text(self)

    def _repr_html_(self) -> str:
        from diffmask.report.notebook import render_notebook

        return render_notebook(self)
