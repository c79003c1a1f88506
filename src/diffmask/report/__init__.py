"""Pages, tables, charts and figures of results. Nothing here imports torch."""
