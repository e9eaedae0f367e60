"""Tests of stream tables."""
