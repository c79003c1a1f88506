"""The explanation of a response: scores of the prompt's parts, and the parts that were measured to be needed."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from diffmask.errors import InputError
from diffmask.explanation.text_units import Span
from diffmask.results.formatting import format_decimal

MOST_PASSES = 64
"""Masked copies of a prompt that one verified set may take."""


@dataclass(frozen=True)
class PromptPart:
    """A named piece of a prompt that is kept or erased as a whole."""

    name: str
    kind: str
    """`document`, `turn`, `system` or `tool`."""
    text: str
    span: Span
    """First and last character in the rendered prompt, the last exclusive."""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class NeededParts:
    """Parts that keep the response when all others are erased; truthy if that was measured to hold."""

    kept: tuple[bool, ...]
    """One for each part."""
    kl: float
    """KL(original || only these parts), in nats per response token."""
    margin: float
    """Largest allowed KL, in nats per response token."""
    same_response: bool
    """Whether greedy decoding from these parts alone gives the same response, token by token."""
    minimal: bool
    """Whether dropping any single part was measured to break the margin or, where asked for, the response."""
    passes: int
    """Masked copies of the prompt that went through the model."""
    erased_tokens: float
    """Share of the parts' tokens that is erased."""
    erasing: str
    """How parts were erased: `hide`, `remove` or `replace`."""

    def __bool__(self) -> bool:
        return self.kl <= self.margin

    def __str__(self) -> str:
        response = "the same response" if self.same_response else "another response"
        minimal = "no part can be dropped" if self.minimal else "a smaller set may exist"
        relation = "<=" if self else ">"
        return (
            f"verified: KL {format_decimal(self.kl, 3)} {relation} {self.margin:g} nats per token, {response}, "
            f"{minimal}; {self.erased_tokens:.0%} of the tokens erased ({self.erasing}), {self.passes} passes"
        )


@dataclass(frozen=True)
class Regenerated:
    """The response to the whole prompt and the response to its needed parts alone."""

    original: str
    shortened: str
    prompt: str
    """The shortened prompt, with the template."""

    @property
    def same(self) -> bool:
        """Whether both responses are the same text."""
        return self.original.strip() == self.shortened.strip()

    def __str__(self) -> str:
        verdict = "the same" if self.same else "different"
        return f"whole prompt: {self.original}\nneeded parts: {self.shortened}\nThe responses are {verdict}."


PartTable = Sequence[Sequence[float]]
"""Numbers with one row per part."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ResponseExplanation:
    """Scores of the parts of one prompt for one response."""

    prompt: str
    """The prompt as the model reads it."""
    parts: tuple[PromptPart, ...]
    scores: tuple[float, ...]
    """One per part; larger is more important for the response."""
    response: str
    response_tokens: tuple[str, ...]
    method: str
    verified: NeededParts | None = None
    """Parts that were measured to be enough; None if that was not asked for."""
    own_response: bool = True
    """Whether the response is the model's own greedy one."""
    regenerate: Callable[[tuple[bool, ...]], Regenerated] = field(compare=False)
    measure_links: Callable[[], PartTable] = field(compare=False)
    measure_layers: Callable[[], tuple[tuple[str, ...], PartTable]] = field(compare=False)
    verifier: Callable[[float, bool, int], NeededParts] = field(compare=False)

    def __repr__(self) -> str:
        best = sorted(zip(self.scores, self.parts, strict=True), key=lambda pair: -pair[0])[:2]
        return f"ResponseExplanation({self.response!r}: {'; '.join(part.name for _, part in best) or 'no parts'})"

    @property
    def needed(self) -> tuple[PromptPart, ...]:
        """The smallest set of parts that was found and measured to keep the response."""
        if self.verified is None:
            raise InputError("this explanation was not verified; call .verify(), or explain with verify=True")
        return tuple(part for part, kept in zip(self.parts, self.verified.kept, strict=True) if kept)

    def verify(
        self, margin: float = 0.1, *, same_response: bool = True, passes: int = MOST_PASSES
    ) -> "ResponseExplanation":
        """Return this explanation with a verified set at another margin, in nats per response token.

        `same_response=False` bounds the divergence only, and reports whether the greedy response is the same. `passes`
        limits the masked copies of the prompt: with few, the set holds but a smaller one may exist.
        """
        if passes < 1:
            raise InputError(f"a set is verified with at least 1 pass; found passes={passes}")
        return replace(self, verified=self.verifier(margin, same_response, passes))

    @cached_property
    def links(self) -> PartTable:
        """Loss in log-probability of each response token without each part, measured part by part."""
        return self.measure_links()

    @cached_property
    def layers(self) -> tuple[tuple[str, ...], PartTable]:
        """Layers, and for each part the KL when its keys and values are hidden from that layer on.

        A part whose KL is small from some layer on is not needed any more there.
        """
        return self.measure_layers()

    def without_the_rest(self) -> Regenerated:
        """Generate the response again, from the needed parts alone."""
        if self.verified is None:
            raise InputError("this explanation was not verified; call .verify() first")
        return self.regenerate(self.verified.kept)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the prompt, its parts with character spans and scores, the response, the needed set."""
        kept = self.verified.kept if self.verified else (None,) * len(self.parts)
        return {
            "prompt": self.prompt,
            "response": self.response,
            "own_response": self.own_response,
            "method": self.method,
            "parts": [
                {**asdict(part), "span": list(part.span), "score": score, "needed": needed}
                for part, score, needed in zip(self.parts, self.scores, kept, strict=True)
            ],
            "verified": None if self.verified is None else {**asdict(self.verified), "holds": bool(self.verified)},
        }

    def show(self) -> None:
        """Print the parts with their scores, the needed ones marked."""
        print(self)

    def __str__(self) -> str:
        kept = self.verified.kept if self.verified else (False,) * len(self.parts)
        lines = [f"response: {self.response}", f"scores: {self.method}"]
        for part, score, needed in zip(self.parts, self.scores, kept, strict=True):
            lines.append(f"{'*' if needed else ' '} {score:8.3f}  {part.name}: {_shorten(part.text)}")
        lines.append(f"* needed; {self.verified}" if self.verified else "Predicted, not verified.")
        return "\n".join(lines)

    def to_html(self, path: str | Path | None = None, *, links: bool = True, layers: bool = False) -> str:
        """Return a page with shaded parts; hovering a response token marks its sources. `path` also writes it.

        `links` takes one forward pass per part; `layers` adds a slider and takes one pass per part and layer.
        """
        from diffmask.explanation.response_page import render_response

        page = render_response(self, links=links, layers=layers)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _repr_html_(self) -> str:
        from diffmask.explanation.response_page import render_parts

        return render_parts(self)


def _shorten(text: str, width: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
