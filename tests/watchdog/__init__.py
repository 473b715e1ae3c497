"""Tests of the recovery sidecar."""
