"""tau_retail: customer service over the databases, tools and policy of tau-bench's retail domain."""
