"""Attribution methods, one a file."""
