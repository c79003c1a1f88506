"""`diffmask needs`: which parts of a prompt does a language model's response need?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from diffmask.cli.options import Quiet, configure_logging

Documents = Annotated[
    Path | None,
    typer.Option(help="Table with one document per row (.jsonl, .csv, .tsv, .parquet), or a .txt file."),
]
Messages = Annotated[
    Path | None, typer.Option(help="JSON file with chat messages, or messages and tools, instead of documents.")
]
Response = Annotated[str | None, typer.Option(help="Response to explain; by default the model's own greedy one.")]
MethodName = Annotated[str, typer.Option(help="Method that orders the parts; one that needs no fit, such as gradient.")]


def needs_command(
    model: Annotated[str, typer.Option(help="Folder or hub id of the language model; 'smollm2' is packaged.")],
    documents: Documents = None,
    question: Annotated[str, typer.Option(help="Question about the documents; it is never erased.")] = "",
    messages: Messages = None,
    response: Response = None,
    unit: Annotated[str, typer.Option(help="Parts: sentence, document, word or turn.")] = "sentence",
    erasing: Annotated[str, typer.Option(help="How parts are erased: hide, remove or replace.")] = "hide",
    method: MethodName = "leave-one-out",
    margin: Annotated[float, typer.Option(min=0, help="Largest divergence, in nats per response token.")] = 0.1,
    passes: Annotated[int, typer.Option(min=1, help="Largest number of masked copies of the prompt to verify.")] = 64,
    text_column: Annotated[str, typer.Option(help="Column of the documents.")] = "text",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Largest length of a generated response.")] = 32,
    out: Annotated[Path | None, typer.Option(help="JSON file to write, with character spans.")] = None,
    html: Annotated[Path | None, typer.Option(help="Page to write: parts shaded, response tokens linked.")] = None,
    quiet: Quiet = False,
) -> None:
    """Find the smallest set of prompt parts that keeps a language model's response, verified on the model.

    Example: diffmask needs --model smollm2 --documents docs.jsonl --question "Where does Maria live?"
    """
    import json

    from diffmask.core.config import parse
    from diffmask.datasets.contexts import read_documents, read_messages
    from diffmask.errors import InputError
    from diffmask.tasks.generation.prompt_encoding import PromptEncodingConfig
    from diffmask.tasks.generation.text_generation import TextGeneration

    if (documents is None) == (messages is None):
        raise InputError("give --documents with a --question, or --messages")
    prompt: dict[str, object] = {} if response is None else {"response": response}
    if documents is not None:
        prompt |= {"documents": read_documents(documents, text_column), "question": question}
    elif messages is not None:
        prompt |= read_messages(messages)
    configure_logging(quiet)
    choices: dict[str, Any] = {"unit": unit, "erasing": erasing, "max_new_tokens": max_new_tokens}
    task = TextGeneration(model, encoding=PromptEncodingConfig(**choices))
    explanation = parse("method", method, "--method").fit(task)(prompt, verify=False).verify(margin, passes=passes)
    explanation.show()
    print(explanation.without_the_rest())
    if out is not None:
        out.write_text(json.dumps(explanation.to_dict(), indent=1), encoding="utf-8")
    if html is not None:
        explanation.to_html(html)
