"""Pairs of texts, such as premise and hypothesis: python pair_of_texts.py CLASSIFIER"""

import sys

import diffmask as dm

pairs = [("The film was fun.", "I loved it."), ("The plot is a mess.", "The film is great.")]
for explanation in dm.explain(sys.argv[1], pairs):
    print([(unit.segment, unit.text) for unit in explanation.units], explanation.verified.sentence)
