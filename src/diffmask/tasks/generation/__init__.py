"""Task of a decoder language model: which parts of a prompt did its response need?"""
