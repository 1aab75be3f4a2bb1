"""The exact pieces of Phi: points on them, the descent, and its steps by dense and by sparse linear algebra."""
