"""One file or folder per task: its data, its model and its metric."""
