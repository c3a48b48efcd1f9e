"""Making the data of paper_search."""
