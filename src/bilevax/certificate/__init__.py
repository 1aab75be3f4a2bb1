"""What is proven about a point: the certificate, its challenges, stationarity."""
