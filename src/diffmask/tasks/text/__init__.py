"""Parts that every task on a Hugging Face model shares: encoding, heads, loading, inspection and fine-tuning."""
