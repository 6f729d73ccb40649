"""Translation: read a sentence, write it in another language."""
