"""Your own scoring function as a method: python own_method.py CLASSIFIER"""

import sys

import diffmask as dm


def embedding_norm(model, batch):
    """Score a token by the length of its embedding."""
    return model.get_input_embeddings()(batch.tokens).norm(dim=-1)


dm.explain(sys.argv[1], "A fast, funny movie.", dm.from_function(embedding_norm)).show()
