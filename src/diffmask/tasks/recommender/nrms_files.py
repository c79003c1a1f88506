"""Make an untrained NRMS from an encoder or from the words of titles; save and load a trained one. No pickle."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from diffmask.core.training import seeded
from diffmask.datasets.loading import packaged_encoder
from diffmask.errors import InputError, StoreError
from diffmask.tasks.recommender.nrms import NRMS, NRMSConfig
from diffmask.tasks.text.known_tasks import RECOMMENDER_FILE
from diffmask.tasks.text.pretrained import load_tokenizer, quiet_transformers

FILE = RECOMMENDER_FILE
WEIGHTS = "model.safetensors"
FORMAT = "diffmask-nrms-1"
WORDS = "words"
"""Name of the encoder that is a table of word vectors, trained from scratch."""
SPECIAL_TOKENS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}


def init_nrms(
    encoder: str, titles: Iterable[str], config: NRMSConfig, seed: int, *, trust_remote_code: bool = False
) -> tuple[NRMS, Any]:
    """Return an untrained recommender and its tokenizer.

    `encoder` is a folder or hub id of a Hugging Face encoder, `minilm`, or `words` for vectors of the titles' words.
    """
    if encoder == WORDS:
        tokenizer = word_tokenizer(titles)
        with seeded(seed, "nrms"):
            vectors = nn.Embedding(len(tokenizer), config.width, padding_idx=tokenizer.pad_token_id)
            return NRMS(config, vectors), tokenizer
    from transformers import AutoModel

    name = packaged_encoder(encoder)
    tokenizer = load_tokenizer(name, trust_remote_code=trust_remote_code)
    with seeded(seed, "nrms"), quiet_transformers():
        body = AutoModel.from_pretrained(name, trust_remote_code=trust_remote_code)
        return NRMS(config, body), tokenizer


def word_tokenizer(titles: Iterable[str], min_count: int = 1, max_words: int = 50_000) -> Any:
    """Return a fast tokenizer whose tokens are the lower-case words of the titles, the most frequent first."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    normalizer, splitter = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    counts = Counter(word for title in titles for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(title)))
    if not counts:
        raise InputError("the titles have no words to learn vectors of")
    known = [word for word, count in counts.most_common(max_words) if count >= min_count]
    vocabulary = {word: index for index, word in enumerate([*SPECIAL_TOKENS.values(), *known])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS)


def save_nrms(model: NRMS, tokenizer: Any, folder: str | Path, notes: dict[str, Any] | None = None) -> None:
    """Write weights, sizes, the encoder's configuration and the tokenizer; `notes` say how it was trained."""
    from safetensors.torch import save_model

    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    words = isinstance(model.encoder, nn.Embedding)
    if not words:
        model.encoder.config.save_pretrained(home)
    tokenizer.save_pretrained(home)
    save_model(model, str(home / WEIGHTS))
    size = model.encoder.num_embeddings if words else None
    content = {"format": FORMAT, "config": asdict(model.config), "words": size, "training": notes or {}}
    # Last: a folder with this file is complete.
    (home / FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")


def load_nrms(folder: str | Path, *, trust_remote_code: bool = False) -> tuple[NRMS, Any]:
    """Return the recommender of a folder and its tokenizer."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    home = Path(folder)
    try:
        content = json.loads((home / FILE).read_text(encoding="utf-8"))
        config, size = NRMSConfig(**content["config"]), content["words"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{home} holds no recommender ({error}); train one with `diffmask train --task recommender`"
        ) from None
    model = NRMS(config, _empty_encoder(home, size, config, trust_remote_code))
    try:
        load_model(model, str(home / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise StoreError(f"{home / WEIGHTS} does not fit {home / FILE}: {error}") from None
    return model.eval(), load_tokenizer(home)


def _empty_encoder(home: Path, size: int | None, config: NRMSConfig, trust_remote_code: bool) -> nn.Module:
    if size is not None:
        return nn.Embedding(size, config.width, padding_idx=0)
    from transformers import AutoConfig, AutoModel

    with quiet_transformers():
        settings = AutoConfig.from_pretrained(home, trust_remote_code=trust_remote_code)
        body: nn.Module = AutoModel.from_config(settings, trust_remote_code=trust_remote_code)
        return body
