"""The BiLSTM with attention of NLP-ROAR (Madsen et al. 2022) and its kernels."""
