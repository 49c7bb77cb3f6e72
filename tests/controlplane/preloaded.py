"""What a function's process finds there when it is forked: all that it would import, or read from disk, at its first call.

Only the process that the others are forked from imports this module.
"""

import kubernetes.client
import kubernetes.config  # noqa: F401 - how kubeconfigs are read, over a second

import functions.aws.consolidate
import functions.aws.interrupt
import functions.aws.provision
import functions.aws.sweep
import functions.aws.terminate  # noqa: F401 - as the others above
import tests.controlplane.sandboxes  # noqa: F401 - what the process runs
from journeyman_simulator.moto_account.moto_server import client_for

for service in ("ec2", "eks", "iam", "sqs", "ssm"):
    client_for("http://localhost", service).close()  # the next client finds the service's model in memory
