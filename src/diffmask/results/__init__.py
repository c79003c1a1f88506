"""Records, intervals, comparisons and verdicts: numbers about explanations. Nothing here imports torch."""
