"""WebShop: searching, reading, choosing and buying in a shop of real products."""
