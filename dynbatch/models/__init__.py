"""Compositions of nodes: layers, recurrent networks, attention, sequence to sequence."""
