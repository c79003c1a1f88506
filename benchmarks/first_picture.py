"""Time from a fresh interpreter to the first picture of one sentence: `diffmask.explain` and Captum's layer IG.

Each is a process of its own, so that imports and the loading of the model count. Two times are measured: until the
last line of the picture is printed, and until the process has ended. Python's bytecode is cached, as pip leaves it: one
run of each script that does not count fills a scratch cache. Usage:

    python benchmarks/first_picture.py CLASSIFIER [--repeats 3]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

TEXT = "A fast, funny, highly enjoyable movie."
OURS = """
import diffmask as dm
dm.explain({model!r}, {text!r}, {method!r}).show()
"""
CAPTUM = """
import torch
from captum.attr import LayerIntegratedGradients
from captum.attr import visualization
from transformers import AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_pretrained({model!r}).eval()
tokenizer = AutoTokenizer.from_pretrained({model!r})
encoded = tokenizer({text!r}, return_tensors="pt")
ids, mask = encoded["input_ids"], encoded["attention_mask"]
target = int(model(ids, mask).logits.argmax())
baseline = torch.full_like(ids, tokenizer.pad_token_id)
baseline[:, 0], baseline[:, -1] = ids[:, 0], ids[:, -1]
layer = LayerIntegratedGradients(lambda ids, mask: model(ids, mask).logits, model.get_input_embeddings())
scores = layer.attribute(ids, baselines=baseline, additional_forward_args=(mask,), target=target, n_steps=50)
scores = scores.sum(dim=-1)[0]
print(list(zip(tokenizer.convert_ids_to_tokens(ids[0]), (scores / scores.norm()).tolist())))
"""


@dataclass(frozen=True)
class Timing:
    """Seconds from the start of a process until its last line, and until its end."""

    picture: float
    process: float


def measure(script: str, cache: str) -> Timing:
    """Run a script in a fresh interpreter whose bytecode is cached in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = last = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-u", "-W", "ignore", "-c", script],
        env={**environment, "PYTHONPYCACHEPREFIX": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    while os.read(process.stdout.fileno(), 65_536):
        last = time.perf_counter()
    if process.wait():
        raise SystemExit(f"this script failed:\n{script}")
    return Timing(last - start, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    scripts = {
        "diffmask.explain, leave-one-out, verified": OURS.format(model=options.model, text=TEXT, method=None),
        "diffmask.explain, integrated gradients, verified": OURS.format(
            model=options.model, text=TEXT, method="integrated-gradients"
        ),
        "Captum's LayerIntegratedGradients, 50 steps": CAPTUM.format(model=options.model, text=TEXT),
    }
    times: dict[str, list[Timing]] = {name: [] for name in scripts}
    with tempfile.TemporaryDirectory() as cache:
        for script in scripts.values():
            measure(script, cache)
        for _ in range(options.repeats):  # in turn, so that a busy machine slows all of them
            for name, script in scripts.items():
                times[name].append(measure(script, cache))
    print_times(
        "picture printed after", {name: [timing.picture for timing in values] for name, values in times.items()}
    )
    print_times("process ended after", {name: [timing.process for timing in values] for name, values in times.items()})


def print_times(title: str, times: dict[str, list[float]]) -> None:
    """Print median, range and the ratio to Captum's median, which is last."""
    reference = statistics.median(list(times.values())[-1])
    print(title)
    for name, values in times.items():
        median = statistics.median(values)
        print(f"  {name}: {median:.2f} s (from {min(values):.2f} to {max(values):.2f}), {median / reference:.2f}x")


if __name__ == "__main__":
    main()
