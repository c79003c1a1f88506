"""Attribution methods."""
