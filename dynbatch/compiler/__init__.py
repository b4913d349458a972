"""Compiles a traced function: a program that is fused, differentiated and printed as code."""
