"""What every Hugging Face task shares."""
