"""A text over the model's limit is read in overlapping parts: python long_text.py CLASSIFIER"""

import sys

import diffmask as dm

reading = dm.TextEncodingConfig(long_texts="stride", overlap=8)
task = dm.TextClassification(sys.argv[1], encoding=reading)
review = "The plot is slow and the acting is dull, but the end is great. " * 12
print(dm.explain(task, review, "gradient", verify=False).at("sentence").to_pandas())
