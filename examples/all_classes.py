"""Scores of one sentence for every class: python all_classes.py CLASSIFIER"""

import sys

import diffmask as dm

task = dm.TextClassification(sys.argv[1])
classes = list(task.head.names)
explanations = dm.explain(task, "The plot is good but the acting is bad.", target=classes, verify=False)
for explanation in explanations:
    print(explanation.target, dict(zip(explanation.words, explanation.scores.tolist(), strict=True)))
