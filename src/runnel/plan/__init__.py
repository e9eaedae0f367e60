"""What a query means: stages, join trees, heads, and helpers over scalar expressions."""
