"""Where messages go: one module per kind. Clients of brokers are imported only when they are used."""
