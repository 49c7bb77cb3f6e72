"""Mutation tests of the core: change one operator of the product at a time and see whether a test notices."""
