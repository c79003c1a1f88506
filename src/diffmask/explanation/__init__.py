"""Explanations of single texts: words, scores and how they are drawn."""
