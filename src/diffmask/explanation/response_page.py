"""One page per explained response: shaded parts, links from response tokens to their sources, a slider of layers."""

import base64
import hashlib
import json
from html import escape
from typing import TYPE_CHECKING

from diffmask.explanation.text_units import Span

if TYPE_CHECKING:
    from diffmask.explanation.response import ResponseExplanation

BACKGROUND = "background: rgba(255, 165, 0, var(--shade))"
STYLE = """
body { font: 16px/1.6 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
:root { color-scheme: light dark; }
pre, .response { white-space: pre-wrap; font: inherit; border: 1px solid #8888; border-radius: .4rem; padding: 1rem; }
mark { color: inherit; border-radius: .2rem; }
mark.needed { outline: 2px solid #1a7f37; }
.rest { opacity: .65; }
.token { border-bottom: 1px dotted; cursor: pointer; }
.token:hover, .token:focus { background: rgba(80, 140, 255, .35); }
"""
SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const marks = [...document.querySelectorAll("mark")];
const shade = values => {
  const top = Math.max(1e-9, ...values.map(value => Math.max(value, 0)));
  marks.forEach(mark => mark.style.setProperty("--shade", Math.max(values[+mark.dataset.part], 0) / top * .8));
};
const rest = () => shade(data.scores);
document.querySelectorAll(".token").forEach(token => {
  const show = () => shade(data.links.map(row => row[+token.dataset.token]));
  token.addEventListener("mouseenter", show);
  token.addEventListener("focus", show);
  token.addEventListener("mouseleave", rest);
  token.addEventListener("blur", rest);
});
const slider = document.getElementById("layer");
if (slider) slider.addEventListener("input", () => {
  shade(data.layers.table.map(row => row[+slider.value]));
  document.getElementById("layer-name").textContent = data.layers.names[+slider.value];
});
rest();
"""


def render_response(explanation: "ResponseExplanation", *, links: bool = True, layers: bool = False) -> str:
    """Return a self-contained page that runs only its own script and loads nothing."""
    data: dict[str, object] = {"scores": list(explanation.scores), "links": explanation.links if links else []}
    if layers:
        names, table = explanation.layers
        data["layers"] = {"names": names, "table": table}
    # Text of the model or the user must not be able to close the element.
    payload = json.dumps(data).replace("<", "\\u003c")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(SCRIPT)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>What did this answer need?</title><style>{STYLE}</style></head><body>"
        f"<h1>What did this answer need?</h1>{render_parts(explanation, tokens=links)}{_slider(explanation, layers)}"
        f'<script type="application/json" id="data">{payload}</script><script>{SCRIPT}</script></body></html>'
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def render_parts(explanation: "ResponseExplanation", *, tokens: bool = False) -> str:
    """Return the prompt with shaded parts, the response, and the claim that was verified."""
    kept = explanation.verified.kept if explanation.verified else (False,) * len(explanation.parts)
    top = max((score for score in explanation.scores if score > 0), default=1.0)
    pieces, end = [], 0
    for number, (part, score, needed) in enumerate(zip(explanation.parts, explanation.scores, kept, strict=True)):
        pieces.append(_rest(explanation.prompt, (end, part.span[0])))
        shade, mark = max(score, 0) / top * 0.8, ' class="needed"' if needed else ""
        pieces.append(
            f'<mark{mark} data-part="{number}" style="--shade: {shade:.3f}; {BACKGROUND}" '
            f'title="{escape(part.name)}: {score:.3f}">{escape(part.text)}</mark>'
        )
        end = part.span[1]
    pieces.append(_rest(explanation.prompt, (end, len(explanation.prompt))))
    claim = escape(str(explanation.verified)) if explanation.verified else "Predicted, not verified."
    return (
        f"<h2>Response</h2><p class='response'>{_response(explanation, tokens)}</p>"
        f"<h2>Prompt</h2><pre>{''.join(pieces)}</pre>"
        f"<p>Outlined parts are needed; {claim}. Scores: {escape(explanation.method)}.</p>"
    )


def _rest(text: str, span: Span) -> str:
    return f"<span class='rest'>{escape(text[slice(*span)])}</span>"


def _response(explanation: "ResponseExplanation", tokens: bool) -> str:
    if not tokens:
        return escape(explanation.response)
    return "".join(
        f'<span class="token" tabindex="0" data-token="{number}">{escape(token)}</span>'
        for number, token in enumerate(explanation.response_tokens)
    )


def _slider(explanation: "ResponseExplanation", layers: bool) -> str:
    if not layers:
        return ""
    names = explanation.layers[0]
    return (
        "<p><label>Shade by the divergence when a part is hidden from this layer on: "
        f'<input type="range" id="layer" min="0" max="{len(names) - 1}" value="0"></label> '
        f'<output id="layer-name">{escape(names[0])}</output></p>'
    )
