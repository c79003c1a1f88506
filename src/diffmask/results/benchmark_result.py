"""`BenchmarkResult`: the comparison of methods on one task, with a verdict. Plain values only; no torch here."""

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
    definition: str
    """Definition as a noun phrase without article, such as "share of tokens on the evidence"."""
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
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    rows: int
    seeds: int = 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of two methods by one metric: mean of first minus second over the same rows."""

    metric: str
    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    """Corrected for the number of comparisons by Holm's method."""
    winner: str | None
    """The significantly better method, or None."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric as a function of another quantity, such as the share of erased tokens."""

    metric: str
    method: str
    x_label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """Results of one method."""

    name: str
    """Short and unique name in this result."""
    config: Mapping[str, Any]
    estimates: Mapping[str, Estimate]
    """By name of the metric. A metric that does not apply is absent."""
    cost: Mapping[str, float]
    """Per text: forwards, backwards, seconds. In total: fit_seconds, peak_megabytes, break_even (number of texts)."""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    """Diagnostics of the fit, if there was one."""
    is_baseline: bool = False
    """Whether the scores ignore the model, as random scores do."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkText:
    """One held-out text with the scores of all methods."""

    words: Sequence[str]
    gaps: Sequence[str]
    """Characters before each word and after the last: one more entry than words."""
    gold: str | None
    prediction: str
    probability: float
    scores: Mapping[str, Sequence[float]]
    """Scores of the words by name of the method."""
    by_layer: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """Scores of the words per layer, by name of the method."""
    layers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the layers by name of the method."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """Result of a benchmark: everything that a report shows."""

    title: str
    verdict: Sequence[str]
    """Paragraphs. The first can be quoted alone."""
    warnings: Sequence[str]
    """Problems that limit the verdict: too few rows, masked texts out of distribution, a failed fit."""
    metrics: Sequence[MetricInfo]
    methods: Sequence[MethodResult]
    comparisons: Sequence[Comparison]
    curves: Sequence[Curve]
    agreement: Mapping[str, Sequence[Sequence[float]]]
    """Matrices methods x methods by kind (rank correlation, overlap of the top words), in the order of `methods`."""
    texts: Sequence[BenchmarkText]
    manifest: Mapping[str, Any]
    masking_excess_loss: float | None = None
    """How far masked texts are out of distribution: excess log-loss in nats, or None if it was not measured."""

    def save(self, folder: str | Path) -> Path:
        """Write `results.json` with this result alone, and return its path."""
        return save_results(folder, [self])

    @staticmethod
    def load(folder: str | Path) -> "BenchmarkResult":
        """Read the result of a benchmark; an error names the file."""
        results = load_results(folder)
        if len(results) != 1:
            raise InputError(f"{Path(folder) / FILE} has {len(results)} results; read them with load_results")
        return results[0]

    def to_html(self, file: str | Path) -> Path:
        """Write the report as one self-contained page and return its path."""
        from diffmask.report.page import render_page

        write_text(Path(file), render_page([self]))
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


FILE = "results.json"
"""File of the results in the folder of a run or a benchmark."""


def save_results(folder: str | Path, results: Sequence[BenchmarkResult]) -> Path:
    """Write the results of a run, one per task, and return the path of the file."""
    file = Path(folder) / FILE
    write_json(file, [asdict(result) for result in results])
    return file


def load_results(folder: str | Path) -> list[BenchmarkResult]:
    """Read the results of a run or a benchmark, one per task; an error names the file."""
    from pydantic import TypeAdapter, ValidationError

    file = Path(folder) / FILE
    if not file.is_file():
        raise InputError(f"{file} is missing: give the --out folder of a finished `diffmask benchmark` or `run`")
    try:
        return TypeAdapter(list[BenchmarkResult]).validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{file} holds no results: {place or 'the file'}: {first['msg']}") from None
