"""The lower level: its constraints, its linear algebra, its central path, and its exact answer by an active set."""
