"""A cluster under load that a real Prometheus watches, and the dashboard's panels as they look then."""
