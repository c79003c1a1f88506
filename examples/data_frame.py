"""From a data frame of texts to a data frame of words: python data_frame.py CLASSIFIER"""

import sys

import pandas as pd

import diffmask as dm

reviews = pd.DataFrame({"text": ["A fast, funny movie.", "A dull mess.", "I loved it."]})
explanations = dm.explain(sys.argv[1], reviews)
print(explanations.to_pandas())
explanations.to_pandas(per="text").to_csv("explained.csv", index=False)
