"""An explanation on a screen, on a page, in a figure."""
