"""The recovery sidecar: it must work when everything else of gridsched does not. Standard library only."""
