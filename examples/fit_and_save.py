"""Fit masks in a minute, save them, load them again: python fit_and_save.py CLASSIFIER [BUDGET]"""

import sys

import diffmask as dm

texts = ["the film is good", "a very dull mess", "fun and great", "not bad", "i hated the plot", "i loved it"] * 6
task = dm.TextClassification(sys.argv[1], train=texts)
explainer = dm.SurrogateMask(budget=sys.argv[2] if len(sys.argv) > 2 else "1min").fit(task)
explainer.save_pretrained("explainer")
print(dm.load_explainer("explainer")("the film is good").verified)
