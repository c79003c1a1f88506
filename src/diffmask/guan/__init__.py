"""Guan et al. 2019: how much noise does each word tolerate before a hidden state notices?"""
