"""Methods of the literature, to compare with."""
