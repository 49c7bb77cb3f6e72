"""Each kind of access gets what the cluster's registration and the function's environment say."""

import base64
from types import SimpleNamespace

import pytest

from journeyman.errors import ConfigurationError
from journeyman.kube.clusters import AckAccess, CceAccess, EksAccess, RegisteredCluster
from journeyman.runtime.access_providers import (
    ALIBABA_VARIABLES,
    GROUPS,
    HUAWEI_VARIABLES,
    access_providers,
    own_access_providers,
)
from journeyman.signing import Credentials
from journeyman_simulator.clock import VirtualClock
from tests.controlplane.certificates import Authority
from tests.helpers import ack as fake_ack
from tests.helpers import cce as fake_cce
from tests.helpers.builders import NOW
from tests.helpers.signed_api import served

PUBLIC, PRIVATE = "https://127.0.0.1:6443", "https://10.0.0.1:5443"


@pytest.fixture
def clock():
    return VirtualClock(NOW)


class AtAlibaba:
    """A cluster on ACK, the access key that Container Service accepts, and the variables that have such a key."""

    variables = ALIBABA_VARIABLES
    key = fake_ack.KEY, fake_ack.SECRET, fake_ack.TOKEN
    argument = "ack"

    def __init__(self, authority, clock):
        self.api = fake_ack.FakeAck(authority, PUBLIC, clock, private_server=PRIVATE)

    def cluster(self, url, endpoint):
        access = AckAccess(cluster_id=fake_ack.CLUSTER, endpoint=endpoint, api=url)
        return RegisteredCluster(name="a", region="cn-hangzhou", access=access)


class AtHuawei:
    """The same on CCE."""

    variables = HUAWEI_VARIABLES
    key = fake_cce.KEY, fake_cce.SECRET, fake_cce.TOKEN
    argument = "cce"

    def __init__(self, authority, clock):
        self.api = fake_cce.FakeCce(authority, PRIVATE, clock, public_server=PUBLIC)

    def cluster(self, url, endpoint):
        access = CceAccess(cluster_id=fake_cce.CLUSTER, project_id=fake_cce.PROJECT, endpoint=endpoint, api=url)
        return RegisteredCluster(name="a", region="cn-north-4", access=access)


@pytest.fixture(params=[AtAlibaba, AtHuawei], ids=["ack", "cce"])
def cloud(request, tmp_path, clock):
    return request.param(Authority(tmp_path), clock)


@pytest.mark.parametrize(("endpoint", "server"), [("public", PUBLIC), ("private", PRIVATE)])
@pytest.mark.parametrize("is_in_variables", [True, False])
def test_certificate_is_issued_for_the_registered_endpoint(cloud, clock, endpoint, server, is_in_variables):
    """The access key is the given one, or else that in the environment."""
    variables = dict(zip(cloud.variables, cloud.key, strict=True)) if is_in_variables else {}
    key, secret, token = cloud.key
    given = Credentials(access_key_id=key, access_key_secret=secret, security_token=token)
    credentials = {} if is_in_variables else {cloud.argument: lambda: given}
    with served(cloud.api) as url:
        cluster = cloud.cluster(url, endpoint)
        connect = own_access_providers(clock, variables, **credentials)[type(cluster.access)]
        assert connect(cluster, cluster.access).server == server


@pytest.mark.parametrize("given", [(), (0,), (1,), (2,)])
def test_access_key_has_an_id_and_a_secret(cloud, clock, given):
    """Half of a key would only fail at the cloud, with a message about signatures."""
    cluster = cloud.cluster("http://127.0.0.1:9", "public")
    variables = {cloud.variables[position]: "x" for position in given}
    connect = own_access_providers(clock, variables)[type(cluster.access)]

    with pytest.raises(ConfigurationError, match=f"{cloud.variables[0]} and {cloud.variables[1]} are not set"):
        connect(cluster, cluster.access)


ROLE = "arn:aws:iam::111122223333:role/journeyman-{}"


@pytest.mark.parametrize(
    ("handler", "role", "groups"),
    [
        ("sweep.lambda_handler", "", ("journeyman-sweep",)),
        ("sweep.lambda_handler", ROLE.format("sweep"), ("journeyman-sweep",)),
        ("sweep.lambda_handler", ROLE.format("all"), GROUPS),
        ("", "", GROUPS),
        ("", ROLE.format("sweep"), GROUPS),
        ("another.handler", "", GROUPS),
    ],
)
def test_access_entry_has_the_groups_of_the_functions_that_share_its_role(tmp_path, clock, handler, role, groups):
    """A function with a role of its own gets its own permissions only."""
    authority = base64.b64encode(Authority(tmp_path).certificate.read_bytes()).decode()
    described = {"endpoint": PUBLIC, "certificateAuthority": {"data": authority}}
    own = {"Arn": "arn:aws:sts::111122223333:assumed-role/own/session"}
    sts = SimpleNamespace(get_caller_identity=lambda: own)
    session = SimpleNamespace(region_name="eu-west-1", client=lambda *_, **__: sts)
    access = EksAccess(role_arn=role)
    cluster = RegisteredCluster(name="a", region="eu-west-1", access=access)
    connect = access_providers(clock, {"_HANDLER": handler}, lambda _: session, lambda _: described)[EksAccess]

    remedy = connect(cluster, access).explain_refusal(403, "pods is forbidden")

    principal = role or "arn:aws:iam::111122223333:role/own"
    assert remedy.endswith(f"--principal-arn {principal} --kubernetes-groups {' '.join(groups)}")
