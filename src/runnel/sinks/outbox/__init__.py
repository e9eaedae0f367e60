"""What a refresh changes, as messages in an outbox: written in the transaction of the refresh."""
