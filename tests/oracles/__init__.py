"""Plain loops in float64, written from the definitions and from nothing else: what kernels are held against."""
