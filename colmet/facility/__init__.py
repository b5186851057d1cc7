"""colmet-facility: logins, queues, Jupyter users and hosts of a facility, as documents for an HTTPS endpoint."""
