"""Making the data of my_task."""
