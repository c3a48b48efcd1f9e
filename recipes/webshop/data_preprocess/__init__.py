"""Making the data of webshop."""
