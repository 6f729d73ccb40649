"""Transcription of speech: predict the words or phones that were said, without their times."""
