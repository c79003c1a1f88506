"""Readers of data sets and tables, and tokenizers of models with a vocabulary of their own."""
