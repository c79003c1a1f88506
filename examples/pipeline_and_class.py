"""Explain a transformers pipeline for a class of your choice: python pipeline_and_class.py CLASSIFIER"""

import sys

from transformers import pipeline

import diffmask as dm

pipe = pipeline("text-classification", sys.argv[1])
texts = ["A fast, funny, highly enjoyable movie.", "A dull mess."]
for explanation in dm.explain(pipe, texts, method="leave-one-out", target=0):
    explanation.show()
