"""From outboxes to sinks elsewhere, and from sources elsewhere to inboxes: workers with connections of their own."""
