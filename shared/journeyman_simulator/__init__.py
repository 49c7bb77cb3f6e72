"""A cluster and a cloud under virtual time: for the demo, event replay, and tests. Heavy parts are imported where used."""
