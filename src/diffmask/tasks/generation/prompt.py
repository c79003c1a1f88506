"""Prompts as lists of named parts, rendered by the model's chat template.

A part is a document, a sentence or word of one, a turn, a system message or a tool definition. The template's own text,
the white space between parts and the question belong to no part and are never erased.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from diffmask.errors import InputError, nearest
from diffmask.explanation.response import PromptPart
from diffmask.explanation.text_units import Span, sentence_spans, word_spans

PartUnit = Literal["document", "turn", "sentence", "word"]
"""How documents and turns are split into parts; `document` and `turn` keep each of them whole."""

FIELDS = ("documents", "question", "system", "messages", "tools", "response", "evidence")


@dataclass(frozen=True)
class Message:
    """A chat message whose text is split into parts, or is not a part."""

    role: str
    content: str
    pieces: tuple[tuple[str, str, Span], ...] = ()
    """Name, kind and character span in `content` of each part."""


@dataclass(frozen=True)
class Prompt:
    """The messages and tools of one request, with a response to explain or None for the model's own."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    response: str | None = None
    evidence: tuple[str, ...] = field(default=())
    """Texts that are known to decide the response: a part that contains one, or is in one, is evidence."""


@dataclass(frozen=True)
class RenderedPrompt:
    """The text that the model reads, with its parts in the order of the text."""

    text: str
    parts: tuple[PromptPart, ...]


def read_prompt(source: Any, unit: PartUnit = "sentence") -> Prompt:
    """Return the prompt of a string, a list of chat messages, or a mapping with some of the fields `FIELDS`.

    >>> prompt = read_prompt({"documents": ["Ann is tall. Bob is not."], "question": "Who is tall?"})
    >>> [name for name, _, _ in prompt.messages[0].pieces]
    ['document 1, sentence 1', 'document 1, sentence 2']
    """
    if unit not in get_args(PartUnit):
        raise InputError(f"'{unit}' is not a unit of prompts; {nearest(str(unit), get_args(PartUnit))}")
    if isinstance(source, Prompt):
        return source
    if isinstance(source, str):
        return _from_messages({"messages": [{"role": "user", "content": source}]}, unit)
    if is_chat(source):
        return _from_messages({"messages": source}, unit)
    if not isinstance(source, Mapping):
        raise InputError(
            f"a prompt is a text, a list of chat messages, or a mapping with documents and a question; found a "
            f"{type(source).__name__}"
        )
    for name in source:
        if name not in FIELDS:
            raise InputError(f"'{name}' is not a field of a prompt; {nearest(str(name), FIELDS)}")
    return _from_messages(source, unit) if "messages" in source else _from_documents(source, unit)


def is_chat(source: Any) -> bool:
    """Return whether a value is a list of chat messages, not a list of prompts."""
    return (
        isinstance(source, Sequence)
        and not isinstance(source, str)
        and len(source) > 0
        and all(isinstance(message, Mapping) and "role" in message for message in source)
    )


def _from_documents(source: Mapping[str, Any], unit: PartUnit) -> Prompt:
    documents = source.get("documents")
    question = _text(source.get("question", ""), "question")
    if isinstance(documents, str) or not isinstance(documents, Sequence) or not documents:
        raise InputError("a prompt of documents needs documents=[...], a list of texts, and a question=...")
    content, pieces = "", []
    for number, document in enumerate(documents, start=1):
        passage = _text(document, f"document {number}").strip()
        pieces += _pieces(passage, f"document {number}", "document", unit, len(content))
        content += passage + "\n\n"
    content = (content + question).strip()
    system = _system(source, unit)
    return Prompt((*system, Message("user", content, tuple(pieces))), _tools(source), *_known(source))


def _from_messages(source: Mapping[str, Any], unit: PartUnit) -> Prompt:
    raw = source["messages"]
    if not is_chat(raw):
        raise InputError("messages is a list of mappings with a role and a content")
    last = max((index for index, message in enumerate(raw) if message["role"] == "user"), default=len(raw) - 1)
    if len(raw) == 1 and not source.get("tools") and "system" not in source:
        last = -1  # A prompt of one turn and nothing else: its own sentences are the parts.
    messages = list(_system(source, unit))
    for index, message in enumerate(raw):
        role, content = str(message["role"]), _text(message.get("content"), f"message {index + 1}").strip()
        name = "system" if role == "system" else "prompt" if last < 0 else f"turn {index + 1} ({role})"
        kind = "system" if role == "system" else "turn"
        pieces = [] if index == last else _pieces(content, name, kind, unit, 0)
        messages.append(Message(role, content, tuple(pieces)))
    return Prompt(tuple(messages), _tools(source), *_known(source))


def _system(source: Mapping[str, Any], unit: PartUnit) -> tuple[Message, ...]:
    if source.get("system") is None:
        return ()
    content = _text(source["system"], "system").strip()
    return (Message("system", content, tuple(_pieces(content, "system", "system", unit, 0))),)


def _tools(source: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    tools = source.get("tools") or ()
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise InputError("tools is a list of JSON schemas, one mapping per tool")
    return tuple(tools)


def _known(source: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    response = source.get("response")
    evidence = source.get("evidence") or ()
    texts = (evidence,) if isinstance(evidence, str) else tuple(evidence)
    return (None if response is None else _text(response, "response")), tuple(_text(text, "evidence") for text in texts)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} of a prompt is a text; found a {type(value).__name__}")
    if not value.strip() and where != "question":
        raise InputError(f"{where} of a prompt is empty")
    return value


SPLITS: Mapping[str, Callable[[str], list[Span]]] = {"sentence": sentence_spans, "word": word_spans}


def _pieces(text: str, name: str, kind: str, unit: PartUnit, start: int) -> list[tuple[str, str, Span]]:
    """Return the named spans of a document or turn that begins at character `start` of its message."""
    spans = SPLITS[unit](text) if unit in SPLITS else [(0, len(text))]
    names = [name] if len(spans) == 1 else [f"{name}, {unit} {number}" for number in range(1, len(spans) + 1)]
    return [
        (part, kind, (start + first, start + last)) for part, (first, last) in zip(names, spans, strict=True) if text
    ]


def render(prompt: Prompt, tokenizer: Any) -> RenderedPrompt:
    """Render the prompt with the tokenizer's chat template; without one, messages are separated by empty lines."""
    contents = [message.content for message in prompt.messages]
    if getattr(tokenizer, "chat_template", None) is None:
        if prompt.tools:
            raise InputError("this tokenizer has no chat template, so tools cannot be given; write them as a document")
        gaps = ["", *["\n\n"] * (len(contents) - 1), "\n"]
        text = "".join(gap + content for gap, content in zip(gaps, [*contents, ""], strict=True))
    else:
        marks = [f"DIFFMASK{index}CONTENT" for index in range(len(contents))]
        gaps = _split_at(_apply_template(prompt, marks, tokenizer), marks)
        text = _apply_template(prompt, contents, tokenizer)
        if "".join(gap + content for gap, content in zip(gaps, [*contents, ""], strict=True)) != text:
            raise InputError("the chat template changes the messages' text, so that their parts cannot be located")
    parts, place = [], 0
    for gap, message in zip(gaps, prompt.messages, strict=False):
        place += len(gap)
        for name, kind, (first, last) in message.pieces:
            parts.append(PromptPart(name, kind, message.content[first:last], (place + first, place + last)))
        place += len(message.content)
    parts += _locate_tools(prompt, text, contents, tokenizer)
    return RenderedPrompt(text, tuple(sorted(parts, key=lambda part: part.span)))


def _apply_template(prompt: Prompt, contents: Sequence[str], tokenizer: Any, leave_out: int | None = None) -> str:
    messages = [
        {"role": message.role, "content": content} for message, content in zip(prompt.messages, contents, strict=True)
    ]
    tools = [dict(tool) for index, tool in enumerate(prompt.tools) if index != leave_out]
    try:
        rendered: str = tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # A template raises whatever its author chose.
        raise InputError(f"the model's chat template refuses these messages: {error}") from error
    return rendered


def _split_at(rendered: str, marks: Sequence[str]) -> list[str]:
    gaps, place = [], 0
    for mark in marks:
        start = rendered.find(mark, place)
        if start < 0:
            raise InputError("the chat template drops a message, so that its parts cannot be located")
        gaps.append(rendered[place:start])
        place = start + len(mark)
    return [*gaps, rendered[place:]]


def _locate_tools(prompt: Prompt, text: str, contents: Sequence[str], tokenizer: Any) -> list[PromptPart]:
    """Locate each tool definition by the text that disappears when it is left out."""
    parts = []
    for index, tool in enumerate(prompt.tools):
        if len(prompt.tools) == 1:
            # Without its only tool a template also drops the introduction: compare with two copies of it.
            without = text
            double = Prompt(prompt.messages, (tool, tool), prompt.response)
            longer = _apply_template(double, contents, tokenizer)
        else:
            longer, without = text, _apply_template(prompt, contents, tokenizer, leave_out=index)
        first, last = _difference(longer, without)
        if first == last:
            raise InputError("this model's chat template does not show tools; write them as a document")
        definition = tool.get("function", tool)
        parts.append(PromptPart(f"tool {definition.get('name', index + 1)}", "tool", text[first:last], (first, last)))
    return parts


def _difference(longer: str, shorter: str) -> Span:
    """Return the span of `longer` that `shorter` lacks, moved to the left as far as possible."""
    limit = len(shorter)
    last = next((place for place in range(1, limit + 1) if longer[-place] != shorter[-place]), limit + 1) - 1
    return limit - last, len(longer) - last
