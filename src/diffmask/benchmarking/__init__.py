"""Methods side by side on one model: what is planned, forecast, done, and put on a board."""
