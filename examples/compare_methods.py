"""Which method can be believed on your texts? python compare_methods.py CLASSIFIER"""

import sys

import diffmask as dm

texts = [f"the {noun} was {word}" for noun in ("film", "plot", "acting") for word in ("good", "bad", "dull", "fun")]
task = dm.TextClassification(sys.argv[1], train=texts, test=texts)
dm.benchmark(task, ["gradient", "leave-one-out"], ["comprehensiveness"], texts=12, out="compared").show()
