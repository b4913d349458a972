"""A graph-based dependency parser with biaffine scores, on PetroGold."""
