"""Dashboards for Grafana, of Elasticsearch, OpenSearch and Prometheus, made of one table of panels."""
