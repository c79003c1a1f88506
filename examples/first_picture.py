"""Explain one sentence: python first_picture.py CLASSIFIER"""

import sys

import diffmask as dm

dm.explain(sys.argv[1], "A fast, funny, highly enjoyable movie.").show()
