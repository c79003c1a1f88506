"""A web page with the pictures of several texts: python web_page.py CLASSIFIER"""

import sys
from pathlib import Path

import diffmask as dm
from diffmask.explanation.heatmap import html_document

texts = ["A fast, funny, highly enjoyable movie.", "A dull mess."]
pictures = [explanation.heatmap() for explanation in dm.explain(sys.argv[1], texts)]
Path("page.html").write_text(html_document("What the classifier reads", pictures), encoding="utf-8")
