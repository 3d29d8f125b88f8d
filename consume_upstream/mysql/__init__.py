"""MySQL and MariaDB as the upstream: questions to the server, snapshot reads, and the binlog."""
