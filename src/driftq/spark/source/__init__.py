"""The Spark data source: options, offset planning, fetching, columns."""
