"""Remove and retrain: mask what a method calls important, train again, see how far performance falls."""
