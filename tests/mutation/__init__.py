"""Mutation tests of the core and of what is around it: change one operator of the product at a time and see whether a test notices."""
