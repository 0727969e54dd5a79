"""HTTP towards replicas of the cluster and backends outside of it."""
