"""The words that matter most per class, as a table and a figure: python words_per_class.py CLASSIFIER"""

import sys

import diffmask as dm

texts = ["the film is good", "a good movie", "good acting", "the film is bad", "a bad movie", "bad acting", "a mess"]
words = dm.aggregate(dm.explain(sys.argv[1], texts))
words.show()
words.to_csv("words.csv")
words.plot().savefig("words.pdf")
