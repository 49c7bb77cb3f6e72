"""Preloads into the fork server the modules and files that a function would load at its first call.

Only the fork server imports this module.
"""

import kubernetes.client
import kubernetes.config  # noqa: F401 - reads kubeconfigs; the import takes over a second

import functions.aws.consolidate
import functions.aws.interrupt
import functions.aws.provision
import functions.aws.sweep
import functions.aws.terminate  # noqa: F401 - with the four above
import tests.controlplane.sandboxes  # noqa: F401 - the process runs it
from journeyman_simulator.moto_account.moto_server import client_for

for service in ("ec2", "eks", "iam", "sqs", "ssm"):
    client_for("http://localhost", service).close()  # boto3 now has the service's model in memory
