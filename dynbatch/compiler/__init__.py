"""A traced function as a program: simplified, fused, differentiated, and printed as code."""
