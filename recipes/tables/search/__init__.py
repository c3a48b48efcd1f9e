"""A search for short SQL programs that give the answer of a training question."""
