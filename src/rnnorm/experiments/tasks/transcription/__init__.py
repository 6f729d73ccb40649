"""Transcription of speech: which words or phones were said, without their times."""
