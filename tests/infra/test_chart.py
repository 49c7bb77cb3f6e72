"""The Helm chart: a real API server accepts what Helm renders, and it has the intended content."""

import pytest
import yaml

from infra.forwarder.forwarder_settings import read_settings
from infra.forwarder.notifications import NotifiedStep
from tests.helpers.go_programs import GoProgramMissingError
from tests.infra.helm_program import CHART, EXAMPLES, HELM, NAMESPACE, HelmError, helm, rendered

pytestmark = pytest.mark.slow

CRDS = CHART.parent / "crds"
SQS, HTTPS, EVENTBRIDGE, RIGHTS_ONLY = (
    CHART / "ci" / f"{name}-values.yaml" for name in ("sqs", "https", "eventbridge", "rights-only")
)
STEPS = ("provision", "terminate", "consolidate", "interrupt", "sweep", "api")
NODE_CLASSES = {
    "aws": [("karpenter.k8s.aws", "ec2nodeclasses")],
    "alibaba": [("karpenter.k8s.alibabacloud", "ecsnodeclasses"), ("karpenter.alibabacloud.com", "ecsnodeclasses")],
    "huawei": [("karpenter.k8s.huawei", "ccenodeclasses")],
}
PATHS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
}


@pytest.fixture(autouse=True, scope="module")
def _helm():
    try:
        HELM.path()
    except GoProgramMissingError as missing:
        pytest.skip(str(missing))


def of_kind(documents, kind):
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


def the_pod(documents):
    """The forwarder's pod template, and its only container."""
    (deployment,) = of_kind(documents, "Deployment").values()
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return template, container


def rights(documents, step):
    """(group, resource, verb) for each right of a step's ClusterRole."""
    rules = of_kind(documents, "ClusterRole")[f"journeyman-{step}"]["rules"]
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


# --- Helm and the API server


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_helm_lint_reports_nothing(values):
    """Warnings are failures here."""
    assert helm("lint", "--strict", "--quiet", str(CHART), "--values", str(values)).strip() == ""


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: path.stem)
def test_api_server_accepts_every_object_with_strict_validation(values, control_plane, namespace):
    """Strict validation rejects unknown and duplicate fields."""
    documents = rendered(values, f"--namespace={namespace}", f"--set=access.leaseNamespace={namespace}")

    def dry_run(document):
        meta = document["metadata"]
        path = f"{PATHS[document['kind']]}/{meta['name']}".format(namespace=meta.get("namespace"))
        query = "dryRun=All&fieldValidation=Strict&fieldManager=chart&force=true"
        return control_plane.admin.call("PATCH", f"{path}?{query}", document, kind="application/apply-patch+yaml")

    answers = {(d["kind"], d["metadata"]["name"]): dry_run(d) for d in documents}

    assert len(answers) == len(documents) > 20
    assert {d["metadata"].get("namespace", namespace) for d in documents} == {namespace}
    assert {key: body["message"] for key, (status, body) in answers.items() if status >= 300} == {}


@pytest.mark.parametrize("values", [SQS, HTTPS], ids=lambda path: path.stem)
def test_restricted_pod_security_standard_admits_the_forwarder(values, control_plane, namespace):
    """A namespace that enforces it forbids a pod with any further capability."""
    admin = control_plane.admin
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    admin.do("PATCH", f"/api/v1/namespaces/{namespace}", label, kind="application/merge-patch+json")
    template, container = the_pod(rendered(values))
    template["metadata"]["name"] = "forwarder"
    pods = f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict"

    admitted = admin.do("POST", pods, template)
    container["securityContext"]["capabilities"] = {"drop": ["NET_RAW"]}
    status, refusal = admin.call("POST", pods, template)

    assert admitted["spec"]["priority"] == 2_000_000_000  # system-cluster-critical
    assert (status, refusal["reason"]) == (403, "Forbidden")
    assert "unrestricted capabilities" in refusal["message"]


# --- custom resource definitions


@pytest.mark.parametrize("cloud", NODE_CLASSES)
def test_chart_has_the_generated_crds_and_uninstall_keeps_them(cloud):
    """Their text is that of `make crds`; an annotation makes Helm keep them; NodeClasses of other clouds are left out."""
    generated = {path.name: path.read_text() for path in CRDS.glob("*.yaml")}
    carried = {path.name: path.read_text() for path in (CHART / "files" / "crds").iterdir()}
    made = of_kind(rendered(RIGHTS_ONLY, f"--set=cloud={cloud}"), "CustomResourceDefinition")

    assert carried == generated
    assert {crd["metadata"].pop("annotations")["helm.sh/resource-policy"] for crd in made.values()} == {"keep"}
    wanted = [yaml.load(text, yaml.CSafeLoader) for text in generated.values()]
    others = {f"{plural}.{group}" for other in NODE_CLASSES if other != cloud for group, plural in NODE_CLASSES[other]}
    assert made == {crd["metadata"]["name"]: crd for crd in wanted if crd["metadata"]["name"] not in others}


def test_skipped_crds_are_left_out():
    """A user may skip Karpenter's, if Karpenter's own chart installs them, or all."""
    ours = of_kind(rendered(RIGHTS_ONLY, "--set=crds.karpenter=skip"), "CustomResourceDefinition")
    none = of_kind(rendered(RIGHTS_ONLY, "--set=crds.karpenter=skip,crds.journeyman=skip"), "CustomResourceDefinition")
    names = ("nodedisruptions", "fleetplans", "offeringstates", "churnledgers", "fleetguards")
    assert set(ours) == {f"{name}.journeyman.dev" for name in names}
    assert none == {}


# --- rights


def test_rights_on_nodeclasses_are_those_of_the_cloud():
    """Every ClusterRole, those of people and of the forwarder included, has the same rights on each cloud's NodeClasses."""

    def on_node_classes(cloud):
        found = {}
        for name, role in of_kind(rendered(SQS, f"--set=cloud={cloud}"), "ClusterRole").items():
            for rule in role["rules"]:
                for resource in rule["resources"]:
                    if "nodeclasses" in resource:
                        kinds = [(group, resource.split("/")[0]) for group in rule["apiGroups"]]
                        assert kinds == NODE_CLASSES[cloud], (name, rule)
                        found.setdefault(name, []).append((resource.partition("/")[2], rule["verbs"]))
        return found

    on_aws = on_node_classes("aws")
    assert on_node_classes("alibaba") == on_node_classes("huawei") == on_aws
    assert on_aws["journeyman-provision"] == [("", ["list"]), ("", ["patch"]), ("status", ["patch"])]
    assert {"journeyman-sweep", "journeyman-view", "journeyman-admin", "journeyman-forwarder"} <= on_aws.keys()


def test_each_function_has_its_own_role_bound_to_its_own_group():
    """The groups are those of the stack's access entries."""
    documents = rendered(RIGHTS_ONLY)

    bound = {name: b["subjects"] for name, b in of_kind(documents, "ClusterRoleBinding").items()}
    assert {name: [s["name"] for s in subjects] for name, subjects in bound.items()} == {
        f"journeyman-{step}": [f"journeyman-{step}"] for step in STEPS
    }
    leases = of_kind(documents, "Role")
    assert {name: role["rules"][1]["resourceNames"] for name, role in leases.items()} == {
        f"journeyman-{step}": [f"journeyman-{step}"] for step in ("provision", "terminate", "consolidate")
    }
    assert {role["metadata"]["namespace"] for role in leases.values()} == {"kube-system"}


def test_all_functions_may_share_one_identity():
    """Service accounts have a namespace, users an API group."""
    documents = rendered(HTTPS)

    user = {"kind": "User", "name": "200000000000000001", "apiGroup": "rbac.authorization.k8s.io"}
    viewer = {"kind": "ServiceAccount", "name": "viewer", "namespace": "tools"}
    bindings = of_kind(documents, "ClusterRoleBinding")
    assert {step: bindings[f"journeyman-{step}"]["subjects"] for step in STEPS} == {
        **{step: [user] for step in STEPS},
        "api": [viewer, user],
    }
    assert {b["subjects"][0]["name"] for b in of_kind(documents, "RoleBinding").values()} == {user["name"]}


def test_features_add_their_permissions_only():
    """They are off by default, as in the functions."""
    least, most = rendered(RIGHTS_ONLY), rendered(HTTPS)

    more = rights(most, "provision") - rights(least, "provision")
    assert rights(least, "provision") < rights(most, "provision")
    assert {group for group, _, _ in more} == {"karpenter.sh", "autoscaling.x-k8s.io", "resource.k8s.io", "apps", ""}
    assert {(r, v) for _, r, v in more if v not in {"list", "watch"}} == {
        ("nodeoverlays/status", "patch"),
        ("capacitybuffers/status", "patch"),
    }
    for step in ("terminate", "interrupt"):
        assert rights(least, step) == rights(most, step)


def test_status_of_pods_is_written_for_nomination_only():
    """A user who may write a pod's status may say that it runs."""
    with_it, without = rendered(HTTPS), rendered(HTTPS, "--set=features.podNomination=false")
    assert rights(with_it, "provision") - rights(without, "provision") == {("", "pods/status", "patch")}
    assert not any(("", "pods/status", "patch") in rights(without, step) for step in STEPS)


def test_pods_are_written_for_their_deletion_costs_only():
    """A user who may write pods may change their images."""
    with_it, without = rendered(HTTPS), rendered(HTTPS, "--set=features.podDeletionCostManagement=false")
    assert rights(with_it, "consolidate") - rights(without, "consolidate") == {("", "pods", "patch")}
    assert not any(("", "pods", "patch") in rights(without, step) for step in STEPS)


def test_no_step_has_administrator_permissions():
    """No role has wildcards, secrets, impersonation or RBAC; only terminate deletes pods."""
    documents = rendered(HTTPS)
    all_rights = {step: rights(documents, step) for step in (*STEPS, "forwarder")}

    everything = set().union(*all_rights.values())
    assert not any("*" in right for right in everything)
    assert not {r for _, r, _ in everything} & {"secrets", "configmaps", "serviceaccounts", "users", "groups"}
    assert {g for g, _, _ in everything}.isdisjoint({"rbac.authorization.k8s.io", "certificates.k8s.io"})
    assert [s for s in all_rights if {("", "pods", "delete"), ("", "pods/eviction", "create")} & all_rights[s]] == [
        "terminate"
    ]
    assert {v for step in ("sweep", "forwarder") for _, _, v in all_rights[step]} == {"list", "watch"}


# --- the forwarder


def test_forwarder_reads_its_settings_from_the_deployment():
    """`read_settings` accepts the environment of each sink's Deployment."""
    settings_of = {}
    for values in (SQS, HTTPS, EVENTBRIDGE):
        _, container = the_pod(rendered(values))
        variables = {entry["name"]: entry["value"] for entry in container["env"]}
        settings_of[values] = read_settings({**variables, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    assert {settings.sink for settings in settings_of.values()} == {"sqs", "https", "eventbridge"}
    assert {settings.cluster for settings in settings_of.values()} == {"dev"}
    assert settings_of[SQS].queues[NotifiedStep.TERMINATE].endswith("/journeyman-terminate.fifo")
    assert (settings_of[SQS].region, settings_of[SQS].idle_seconds, settings_of[SQS].max_seconds) == (
        "eu-west-1",
        1,
        10,
    )
    assert settings_of[EVENTBRIDGE].event_bus == "journeyman"
    assert settings_of[HTTPS].receiver_url.startswith("https://api.example/journeyman/")


def test_receiver_token_and_ca_are_mounted_where_the_forwarder_reads_them():
    """The token is projected, for the receiver's audience only, and expires within the hour."""
    template, container = the_pod(rendered(HTTPS))
    settings = read_settings(
        {**{e["name"]: e["value"] for e in container["env"]}, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    )

    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    (source,) = template["spec"]["volumes"][0]["projected"]["sources"]
    assert source == {"serviceAccountToken": {"path": "token", "audience": "journeyman", "expirationSeconds": 3600}}
    assert str(settings.receiver_token_file) == f"{mounts['receiver-token']}/token"
    assert settings.receiver_ca_file == f"{mounts['receiver-ca']}/ca.crt"


def test_forwarder_has_two_replicas_on_different_nodes_and_zones():
    """At most one of them is unavailable."""
    documents = rendered(SQS)
    template, container = the_pod(documents)
    (deployment,) = of_kind(documents, "Deployment").values()
    (budget,) = of_kind(documents, "PodDisruptionBudget").values()
    selector = {"matchLabels": {"app.kubernetes.io/name": "forwarder", "app.kubernetes.io/instance": "journeyman"}}

    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["selector"] == budget["spec"]["selector"] == selector
    assert template["metadata"]["labels"].items() >= selector["matchLabels"].items()
    assert budget["spec"]["maxUnavailable"] == 1
    spread = template["spec"]["topologySpreadConstraints"]
    assert [c["topologyKey"] for c in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert {c["whenUnsatisfiable"] for c in spread} == {"ScheduleAnyway"}
    assert all(c["labelSelector"] == selector for c in spread)
    assert container["resources"]["limits"] == {"memory": "64Mi"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert [p["containerPort"] for p in container["ports"]] == [8081]


def test_network_policy_allows_what_the_forwarder_needs():
    """Ingress: metrics. Egress: DNS, TLS, the API server and the Pod Identity agent."""
    (open_,) = of_kind(rendered(SQS), "NetworkPolicy").values()
    (narrow,) = of_kind(rendered(HTTPS), "NetworkPolicy").values()

    assert open_["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert open_["spec"]["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    assert {p["port"] for rule in open_["spec"]["egress"] for p in rule["ports"]} == {53, 80, 443, 5443, 6443}
    assert narrow["spec"]["ingress"][0]["from"][0]["namespaceSelector"]
    assert narrow["spec"]["egress"][-1] == {"ports": [{"port": 8443, "protocol": "TCP"}]}


# --- values


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("forwarder.clusterName=", "/forwarder/clusterName"),
        ("forwarder.image.repository=Not A Name", "/forwarder/image/repository"),
        ("forwarder.image.digest=sha256:12", "/forwarder/image/digest"),
        ("forwarder.sink.kind=kafka", "/forwarder/sink/kind"),
        ("forwarder.sink.queues.terminate=", "/forwarder/sink/queues/terminate"),
        ("forwarder.sink.queues.terminate=https://sqs.example/1/standard", "/forwarder/sink/queues/terminate"),
        ("forwarder.sink.kind=eventbridge", "/forwarder/sink/eventBus"),
        ("forwarder.sink.kind=https,forwarder.sink.receiver.url=http://plain", "/forwarder/sink/receiver/url"),
        ("forwarder.batch.idle=1", "/forwarder/batch/idle"),
        ("forwarder.replicas=0", "/forwarder/replicas"),
        ("forwarder.replcias=2", "replcias"),
        ("forwarder.podDisruptionBudget.maxUnavailable=some", "/forwarder/podDisruptionBudget/maxUnavailable"),
        ("forwarder.networkPolicy.apiServerPorts={70000}", "/forwarder/networkPolicy/apiServerPorts/0"),
        ("crds.karpenter=maybe", "/crds/karpenter"),
        ("features.nodeOverlay=yes", "/features/nodeOverlay"),
        ("access.sweep[0].kind=Robot,access.sweep[0].name=r2", "/access/sweep/0/kind"),
        ("access.sweep[0].kind=ServiceAccount,access.sweep[0].name=r2", "/access/sweep/0"),
        ("access.leaseNamespace=Kube System", "/access/leaseNamespace"),
        ("rbac.create=true", "rbac"),
    ],
)
def test_invalid_value_is_rejected_with_its_path(given, named):
    """The schema validates values before Helm installs anything."""
    with pytest.raises(HelmError, match="values don't meet the specifications") as refusal:
        rendered(SQS, "--set", given)
    assert named in str(refusal.value)


def test_readme_describes_every_value():
    """It has the whole path of the value, or its last name."""
    readme = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    missing = [path for path in paths(values) if f".{path[-1]}`" not in readme and f"`{'.'.join(path)}`" not in readme]
    assert missing == []


def paths(values, above=()):
    """Yield the paths of values; values with Kubernetes' own schema are not split."""
    opaque = {"resources", "affinity", "nodeSelector", "podDisruptionBudget", "annotations"}
    for name, value in values.items():
        path = (*above, name)
        if isinstance(value, dict) and value and name not in opaque:
            yield from paths(value, path)
        else:
            yield path


def test_release_name_prefixes_every_object():
    """Two releases share only the CustomResourceDefinitions."""
    text = helm("template", "second", str(CHART), "--kube-version=1.36", f"--namespace={NAMESPACE}", f"--values={SQS}")
    names = {
        d["metadata"]["name"]
        for d in yaml.load_all(text, yaml.CSafeLoader)
        if d and d["kind"] != "CustomResourceDefinition"
    }

    assert names
    assert all(name.startswith("second-") for name in names)
