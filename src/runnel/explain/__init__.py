"""What a query becomes, and what a refresh of it reads, in words."""
