"""How it is proven: records, the links between them, and the walks along them."""
