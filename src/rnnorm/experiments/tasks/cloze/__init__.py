"""Reading comprehension: which word of a document belongs into the blank of a query."""
