"""What the user writes: problems, couplings, sets, operators; and the same on flat vectors in natural units."""
