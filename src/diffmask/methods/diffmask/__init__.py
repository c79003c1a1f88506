"""DiffMask (De Cao et al. 2020) and its relatives: masks that keep the answer."""
