"""One file per task: its data, its model and its metric."""
