"""A figure of words by layers for a paper: python words_by_layers.py CLASSIFIER [BUDGET]"""

import sys

import diffmask as dm

texts = ["the film is good", "a very dull mess", "fun and great", "not bad", "i hated the plot", "i loved it"] * 6
task = dm.TextClassification(sys.argv[1], train=texts)
explanation = dm.SurrogateMask(budget=sys.argv[2] if len(sys.argv) > 2 else "1min").fit(task)("the film is good")
print(dict(zip(explanation.words, explanation.dropped_at(), strict=True)))
explanation.plot().savefig("layers.pdf")
