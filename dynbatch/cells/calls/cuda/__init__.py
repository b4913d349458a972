"""A region of calls on a GPU: a gather, a product and a generated kernel a batch."""
