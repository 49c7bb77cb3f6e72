"""CCENodeClasses: defaults, rejected values, their view, the published provider's hash, and what CCE would refuse."""

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from journeyman.core.api import labels
from journeyman.core.api.ccenodeclass import (
    CCENodeClass,
    cce_node_class,
    cce_node_class_hash,
    problems_of,
    reserved_amounts,
    status_of,
)
from journeyman.core.api.conditions import CCENODECLASS_DEPENDENTS, ConditionSet
from journeyman.core.api.model import parse
from journeyman.errors import InvalidObjectError, InvalidQuantityError

MANIFEST = Path(__file__).parents[4] / "docs" / "examples" / "huawei-cluster.yaml"
RECORDED = json.loads((Path(__file__).parent / "recorded" / "cce_node_class_hashes.json").read_text())["cases"]
SUBNET = "30abcb7b-ddeb-4a93-9e83-0b21f59b07a3"
SSD = {"volumeSize": 40, "volumeType": "SSD"}
SPEC = {
    "subnetSelectorTerms": [{"id": SUBNET}],
    "imsSelector": {"imsFamily": "Huawei Cloud EulerOS 2.0"},
    "blockDeviceMappings": {"root": SSD},
    "login": {"sshKey": "admin"},
}
ADDITIONS = {
    "imsSelector": {**SPEC["imsSelector"], "imageID": SUBNET},
    "agencyName": "node",
    "metadataOptions": {"httpTokens": "required"},
    "preInstall": "echo before",
    "postInstall": "echo after",
    "securityReinforcementType": "cybersecurity",
    "tags": {"team": "a"},
    "spotPriceLimit": 0.35,
}
NOW = datetime(2026, 7, 1, tzinfo=timezone.utc)


def raw_of(**spec):
    """A CCENodeClass as the API server has it, with these spec fields; None removes a field."""
    return {
        "apiVersion": "karpenter.k8s.huawei/v1alpha1",
        "kind": "CCENodeClass",
        "metadata": {"name": "default"},
        "spec": {**SPEC, **spec},
    }


def hash_of(**spec):
    """The hash of a CCENodeClass with these spec fields."""
    return cce_node_class_hash(cce_node_class(raw_of(**spec)).spec)


def problems(**spec):
    """The problems of a CCENodeClass with these spec fields."""
    return problems_of(cce_node_class(raw_of(**spec)).node_class)


# --- the model


def test_published_manifest_is_valid_and_can_launch():
    """Nothing of it is lost, and CCE has no objection."""
    raw = next(yaml.safe_load_all(MANIFEST.read_text()))
    node_class = parse(CCENodeClass, raw)
    disks = {**raw["spec"]["blockDeviceMappings"], "users": []}
    assert node_class.spec.to_wire() == {**raw["spec"], "blockDeviceMappings": disks, "tags": {}}
    assert problems_of(node_class) == ()


def test_unset_fields_have_cces_defaults():
    """The runtime is containerd, and the data disk has 100 GiB of the root disk's type and performance."""
    root = {"volumeSize": 50, "volumeType": "GPSSD2", "iops": 3000, "throughput": 125}
    spec = cce_node_class(raw_of(blockDeviceMappings={"root": root})).spec
    assert spec.runtime == "containerd"
    assert spec.k8s_volume.to_wire() == {**root, "volumeSize": 100}
    own = cce_node_class(
        raw_of(blockDeviceMappings={"root": root, "k8s": SSD}, runtimeConfiguration={"type": "docker"})
    )
    assert (own.spec.runtime, own.spec.k8s_volume.to_wire()) == ("docker", SSD)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"subnetSelectorTerms": []}, r"subnetSelectorTerms: .*at least 1 item"),
        ({"subnetSelectorTerms": [{}]}, r"term 0: expected at least one, got none, of name, id"),
        ({"subnetSelectorTerms": [{"id": "subnet-1"}]}, r"subnetSelectorTerms\[0\].id: .*pattern"),
        ({"imsSelector": {"imageID": SUBNET}}, r"imsSelector.imsFamily: required, but missing"),
        ({"imsSelector": {"imsFamily": "x", "imageID": "centos"}}, r"imsSelector.imageID: .*pattern"),
        ({"blockDeviceMappings": {"root": {**SSD, "volumeSize": 39}}}, r"root.volumeSize must be at least 40Gi"),
        ({"blockDeviceMappings": {"root": SSD, "k8s": {**SSD, "volumeSize": 19}}}, r"k8s.volumeSize must be at least 20Gi"),
        ({"kubelet": {"maxPods": 15}}, r"kubelet.maxPods: .*greater than or equal to 16"),
        ({"kubelet": {"maxPods": 257}}, r"kubelet.maxPods: .*less than or equal to 256"),
        ({"kubelet": {"kubeReserved": {"gpu": "1"}}}, r"'gpu' is no key of kubeReserved"),
        ({"kubelet": {"systemReserved": {"cpu": "-1"}}}, r"cpu '-1' is negative"),
        ({"login": {}}, r"exactly one of login.userPassword or login.sshKey"),
        ({"login": {"sshKey": "a", "userPassword": {"password": "b"}}}, r"exactly one of login.userPassword or login.ssh"),
        ({"runtimeConfiguration": {"type": "cri-o"}}, r"runtimeConfiguration.type: Input should be 'docker' or 'containerd'"),
        ({"agencyName": "n" * 65}, r"agencyName: .*at most 64"),
        ({"metadataOptions": {"httpTokens": "on"}}, r"httpTokens: Input should be 'optional' or 'required'"),
        ({"preInstall": ""}, r"preInstall: .*at least 1 character"),
        ({"securityReinforcementType": "null"}, r"securityReinforcementType: Input should be 'cybersecurity'"),
        ({"spotPriceLimit": 0}, r"spotPriceLimit: .*greater than 0"),
        ({"tags": {f"k{i}": "v" for i in range(5)}}, r"tags: .*at most 4 items"),
        ({"tags": {"a.b": "v"}}, r"tags.*pattern"),
        ({"tags": {"a": "v" * 256}}, r"tags.a: .*pattern"),
        ({"tags": {"CCE-x": "v"}}, r"tag 'CCE-x' is set by the controller or by CCE; remove it"),
        ({"tags": {"karpenter-nodeclaim": "v"}}, r"tag 'karpenter-nodeclaim' is set by the controller or by CCE"),
    ],
)  # fmt: skip
def test_invalid_ccenodeclass_is_rejected(spec, words):
    """The error names the object and the field."""
    with pytest.raises(InvalidObjectError, match=f"CCENodeClass default does not validate: .*{words}"):
        cce_node_class(raw_of(**spec))


@pytest.mark.parametrize("password", [12345678, "", ["secret"]])
def test_error_of_a_password_does_not_repeat_it(password):
    """Events and logs have the error."""
    with pytest.raises(InvalidObjectError, match="password is text, salted and encrypted") as refusal:
        cce_node_class(raw_of(login={"userPassword": {"password": password}}))
    assert "12345678" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_object_of_another_version_is_rejected():
    """Its fields may mean something else."""
    with pytest.raises(InvalidObjectError, match=r"apiVersion: Input should be 'karpenter.k8s.huawei/v1alpha1'"):
        cce_node_class({**raw_of(), "apiVersion": "karpenter.k8s.huawei/v1"})


# --- the view


def test_view_has_the_subnets_of_the_status():
    """`status_of` writes what the view reads."""
    conditions = ConditionSet(conditions=(), dependents=CCENODECLASS_DEPENDENTS, generation=1, created=NOW)
    for type_ in CCENODECLASS_DEPENDENTS:
        conditions = conditions.set_true(type_, NOW)
    status = status_of(["b", "a"], conditions.conditions)
    view = cce_node_class({**raw_of(), "status": status})
    assert (view.name, view.subnet_ids) == ("default", ("b", "a"))
    assert {c.type for c in view.conditions if c.status == "True"} == {"SubnetsReady", "ValidationSucceeded", "Ready"}
    assert cce_node_class(raw_of()).subnet_ids == ()


def test_hash_annotations_are_the_published_providers():
    """Then NodeClaims keep their nodes when a cluster changes between the providers."""
    assert cce_node_class(next(yaml.safe_load_all(MANIFEST.read_text()))).hash_annotations == {
        "karpenter.k8s.huawei/ccenodeclass-hash": "8657700372010066670",
        "karpenter.k8s.huawei/ccenodeclass-hash-version": "v3",
    }
    assert labels.CCENODECLASS == "karpenter.k8s.huawei/ccenodeclass"


# --- the hash


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["case"])
def test_hash_is_the_published_providers(recorded):
    """The hashes were computed by its own Go code."""
    raw = {**raw_of(), "spec": recorded["spec"]}
    assert cce_node_class_hash(cce_node_class(raw).spec) == recorded["hash"]


@pytest.mark.parametrize(
    "same",
    [
        {"subnetSelectorTerms": [{"name": "other"}]},
        {"runtimeConfiguration": {"type": "containerd"}},
        {"metadataOptions": {}, "tags": {}},
        {"blockDeviceMappings": {"root": {**SSD, "iops": 0}, "users": []}},
    ],
)
def test_hash_ignores_subnets_and_default_values(same):
    """A node would be the same."""
    assert hash_of(**same) == hash_of()


@pytest.mark.parametrize("field", ADDITIONS)
def test_each_added_field_changes_the_hash_once_it_is_set(field):
    """Another value changes it again."""
    others = {
        "imsSelector": {**SPEC["imsSelector"], "imageID": SUBNET.upper()},
        "metadataOptions": {"httpTokens": "optional"},
        "tags": {"team": "b"},
        "spotPriceLimit": 0.36,
    }
    other = others.get(field, f"{ADDITIONS[field]}2")
    hashes = [hash_of(), hash_of(**{field: ADDITIONS[field]}), hash_of(**ADDITIONS)]
    if field != "securityReinforcementType":  # it has one value
        hashes.append(hash_of(**{field: other}))
    assert len(set(hashes)) == len(hashes)


# --- what CCE would refuse


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"blockDeviceMappings": {"root": {**SSD, "volumeSize": 1025}}},
            "spec.blockDeviceMappings.root.volumeSize is 1025; CCE takes at most 1024 GiB there. Reduce it",
        ),
        (
            {"blockDeviceMappings": {"root": SSD, "k8s": {**SSD, "volumeSize": 32769}}},
            "spec.blockDeviceMappings.k8s.volumeSize is 32769; CCE takes at most 32768 GiB there. Reduce it",
        ),
        (
            {"blockDeviceMappings": {"root": SSD, "users": [SSD, {**SSD, "volumeType": "cloud_essd"}]}},
            (
                "spec.blockDeviceMappings.users[1].volumeType is 'cloud_essd'; "
                "use one of SAS, SSD, SATA, ESSD, GPSSD, GPSSD2, ESSD2"
            ),
        ),
        (
            {"blockDeviceMappings": {"root": {**SSD, "volumeType": "ESSD2"}}},
            "spec.blockDeviceMappings.root.iops is missing; a disk of the type ESSD2 needs it. Set a positive number",
        ),
        (
            {"blockDeviceMappings": {"root": {**SSD, "volumeType": "GPSSD2", "iops": 3000, "throughput": 0}}},
            "spec.blockDeviceMappings.root.throughput is 0; a disk of the type GPSSD2 needs it. Set a positive number",
        ),
        (
            {"blockDeviceMappings": {"root": {**SSD, "volumeType": "ESSD2", "iops": 100, "throughput": 125}}},
            (
                "spec.blockDeviceMappings.root.throughput is 125; a disk of the type ESSD2 cannot have it. "
                "Remove it, or use the type GPSSD2"
            ),
        ),
        (
            {"blockDeviceMappings": {"root": {**SSD, "iops": 0}}},
            (
                "spec.blockDeviceMappings.root.iops is 0; a disk of the type SSD cannot have it. "
                "Remove it, or use the type GPSSD2 or ESSD2"
            ),
        ),
        (
            {"kubelet": {"systemReserved": {"cpu": "0.0001"}}},
            "spec.kubelet.systemReserved.cpu: '0.0001' is not a whole number of millicores, as CCE requires; round it up",
        ),
        (
            {"kubelet": {"kubeReserved": {"memory": "100M"}}},
            "spec.kubelet.kubeReserved.memory: '100M' is not a whole number of Mi, as CCE requires; round it up",
        ),
        (
            {"kubelet": {"kubeReserved": {"ephemeral-storage": "512Mi"}}},
            "spec.kubelet.kubeReserved.ephemeral-storage: '512Mi' is not a whole number of Gi, as CCE requires; round it up",
        ),
        (
            {"kubelet": {"kubeReserved": {"pid": "2097153"}}},
            "spec.kubelet.kubeReserved.pid: '2097153' is too large; CCE reserves at most 2097152 process ids",
        ),
        (
            {"preInstall": "x" * 3840, "postInstall": "y" * 3841},
            (
                "spec.preInstall and spec.postInstall have 10244 characters in base64; CCE takes 10240 in total. "
                "Shorten them, or let them download the rest"
            ),
        ),
        (
            {"imsSelector": {"imsFamily": "Ubuntu 22.04"}, "securityReinforcementType": "cybersecurity"},
            (
                "spec.securityReinforcementType is 'cybersecurity', but spec.imsSelector.imsFamily is 'Ubuntu 22.04'; "
                "use 'Huawei Cloud EulerOS 2.0' or remove securityReinforcementType"
            ),
        ),
    ],
)
def test_what_cce_would_refuse_is_a_problem(spec, text):
    """The CRD admits it; the text names the field, its value, and what to change."""
    assert problems(**spec) == (text,)


def test_all_problems_are_returned_in_the_order_of_the_fields():
    """One correction is then enough."""
    found = problems(
        kubelet={"kubeReserved": {"cpu": "lots", "memory": "100Mi"}},
        blockDeviceMappings={
            "root": {**SSD, "volumeSize": 2000, "volumeType": "GPSSD2"},
            "users": [{**SSD, "iops": 1}],
        },
    )
    assert [text.split()[0] for text in found] == [
        "spec.kubelet.kubeReserved.cpu:",
        *(f"spec.blockDeviceMappings.root.{field}" for field in ("volumeSize", "iops", "throughput")),
        "spec.blockDeviceMappings.users[0].iops",
    ]
    assert "'lots' is not a quantity" in found[0]


def test_values_at_cces_limits_are_no_problem():
    """The largest disks and scripts, and each notation of a whole amount."""
    large = {"volumeSize": 32768, "volumeType": "GPSSD2", "iops": 1, "throughput": 1}
    found = problems(
        blockDeviceMappings={"root": {**SSD, "volumeSize": 1024}, "k8s": large, "users": [{**large, "volumeSize": 10}]},
        kubelet={"kubeReserved": {"cpu": "0.1", "memory": "1Gi", "ephemeral-storage": "1024Mi", "pid": "2097152"}},
        preInstall="x" * 3840,
        postInstall="y" * 3840,
        securityReinforcementType="cybersecurity",
    )
    assert found == ()


def test_reserved_resources_have_the_units_of_cces_api():
    """Millicores, Mi, Gi and process ids."""
    reserved = {"cpu": "1.5", "memory": "1Gi", "ephemeral-storage": "2048Mi", "pid": "1k"}
    assert reserved_amounts(reserved) == {"cpu": 1500, "memory": 1024, "ephemeral-storage": 2, "pid": 1000}
    assert reserved_amounts(None) == {}
    with pytest.raises(InvalidQuantityError, match="'1500Ki' is not a whole number of Mi"):
        reserved_amounts({"memory": "1500Ki"})
