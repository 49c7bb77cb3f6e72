"""The AWS account of the simulation: moto behind its real wire protocol, on virtual time, with its gaps filled.

Nothing is imported here: moto takes over a second to import, so import the module you need when you need it.
`server.SimulatedAws` is the way in; `patches.table` lists every place where moto is made to behave as AWS does.
"""
