"""How fast Runnel is: one module per question, one run for all answers, written to docs/benchmarks.md."""
