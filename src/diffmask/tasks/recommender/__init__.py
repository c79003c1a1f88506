"""News recommender: NRMS, its training, and the task that explains its rankings."""
