"""Word vectors from the packaged encoder: a stand-in for downloaded fastText or GloVe vectors.

    python benchmarks/word_vectors.py --data sst --folder FOLDER --out sst.vec

A word's vector is the mean output of MiniLM for the word alone, projected on the 300 main components of all words of
the training split and scaled to one length.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from diffmask.datasets.loading import packaged_encoder
from diffmask.datasets.tokenizers import SPECIAL_TOKENS, Vocabulary
from diffmask.datasets.word_vectors import write_word_vectors
from diffmask.tasks.bilstm.bilstm_config import BiLSTMConfig

LENGTH = 3.0
"""Euclidean length of every vector."""


@torch.no_grad()
def encode_words(words: Sequence[str], batch_size: int = 256) -> Float[Tensor, "word width"]:
    """Return the mean output of the encoder for each word alone."""
    folder = packaged_encoder("minilm")
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    means = []
    for start in range(0, len(words), batch_size):
        encoding = tokenizer(list(words[start : start + batch_size]), padding=True, return_tensors="pt")
        present = encoding["attention_mask"][..., None].float()
        states = encoder(**encoding).last_hidden_state
        means.append((states * present).sum(1) / present.sum(1))
    return torch.cat(means)


def project(vectors: Float[Tensor, "word width"], size: int) -> Float[Tensor, "word size"]:
    """Project on the main components and scale each vector to `LENGTH`."""
    centred = vectors - vectors.mean(0)
    components = torch.linalg.svd(centred, full_matrices=False).Vh[:size]
    projected = centred @ components.T
    return LENGTH * projected / projected.norm(dim=1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="sst", help="data set of a BiLSTM")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = BiLSTMConfig(data=arguments.data, folder=arguments.folder)
    words = Vocabulary.of(config.dataset().train, config.preset.min_count).words[len(SPECIAL_TOKENS) :]
    vectors = project(encode_words(words), config.preset.embedding_size).numpy().astype(np.float32)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_word_vectors(arguments.out, words, vectors)
    print(f"{len(words)} words, {vectors.shape[1]} numbers each: {arguments.out}")


if __name__ == "__main__":
    main()
