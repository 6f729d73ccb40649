"""Reading comprehension: choose the word of a document that fills the blank of a query."""
