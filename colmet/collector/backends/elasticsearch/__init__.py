"""Documents in Elasticsearch and OpenSearch: the output, its client, mappings, dead letters."""
