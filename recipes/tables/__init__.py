"""Questions about tables, answered with SQL and Python: WikiTableQuestions and TAT-QA."""
