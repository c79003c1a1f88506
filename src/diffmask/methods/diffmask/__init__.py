"""DiffMask (De Cao et al. 2020) and related methods: masks that erase tokens without changing the prediction."""
