"""ROAR and Recursive ROAR (Hooker et al. 2019, Madsen et al. 2022)."""
