"""Network design: problems on roads and routes."""
