"""Both signatures match the vendors' published examples."""

from datetime import datetime, timedelta, timezone

from journeyman.signing import Credentials, alibaba_headers, escaped_path, escaped_query, huawei_headers


def signature_of(headers):
    return headers["Authorization"].rpartition("Signature=")[2]


def alibabas_example(**changes):
    """Return the example of "Request syntax and signature method V3", in its time zone."""
    request = {
        "method": "POST",
        "host": "ecs.cn-shanghai.aliyuncs.com",
        "path": "/",
        "query": {"RegionId": "cn-shanghai", "ImageId": "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"},
        "action": "RunInstances",
        "version": "2014-05-26",
        "credentials": Credentials(access_key_id="YourAccessKeyId", access_key_secret="YourAccessKeySecret"),
        "now": datetime(2023, 10, 26, 18, 22, 32, tzinfo=timezone(timedelta(hours=8))),
        "nonce": "3156853299f313e23d1673dc12e1703d",
    }
    return alibaba_headers(**{**request, **changes})


def huaweis_example(**changes):
    """Return the example of the "API Request Signing Guide"."""
    request = {
        "method": "GET",
        "host": "service.region.example.com",
        "path": "/v1/77b6a44cba5143ab91d13ab9a8ff44fd/vpcs",
        "query": {"marker": "13551d6b-755d-4757-b956-536f674975c0", "limit": "2"},
        "credentials": Credentials(
            access_key_id="QTWAOYTTINDUT2QVKYUC", access_key_secret="MFyfvK41ba2giqM7Uio6PznpdUKGpownRZlmVmHc"
        ),
        "now": datetime(2019, 11, 15, 3, 36, 55, tzinfo=timezone.utc),
        "headers": {"Content-Type": "application/json"},
    }
    return huawei_headers(**{**request, **changes})


def test_alibaba_signature_matches_the_published_example():
    """The test compares the whole header."""
    assert alibabas_example()["Authorization"] == (
        "ACS3-HMAC-SHA256 Credential=YourAccessKeyId,SignedHeaders=host;x-acs-action;x-acs-content-sha256;x-acs-date;"
        "x-acs-signature-nonce;x-acs-version,Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
    )


def test_huawei_signature_matches_the_published_example():
    """The path is signed with a trailing slash, the query sorted."""
    assert huaweis_example()["Authorization"] == (
        "SDK-HMAC-SHA256 Access=QTWAOYTTINDUT2QVKYUC, SignedHeaders=content-type;host;x-sdk-date, "
        "Signature=7be6668032f70418fcc22abc52071e57aff61b84a1d2381bb430d6870f4f6ebe"
    )


def test_signature_covers_the_whole_request():
    """Another body, path, query or token has another signature; the token's header is signed."""
    temporary = Credentials(access_key_id="id", access_key_secret="secret", security_token="token")
    for example in (alibabas_example, huaweis_example):
        signatures = {
            signature_of(example(**changes))
            for changes in ({}, {"body": b"{}"}, {"path": "/other"}, {"query": {"a": "b"}}, {"credentials": temporary})
        }
        assert len(signatures) == 5
    assert "x-acs-security-token" in alibabas_example(credentials=temporary)["Authorization"]
    assert "x-security-token" in huaweis_example(credentials=temporary)["Authorization"]


def test_paths_and_queries_are_escaped_as_in_rfc_3986():
    """A space becomes %20 and a tilde stays; pairs are sorted by escaped name."""
    assert escaped_query({"b": "x y*~", "a": "1/2"}) == "a=1%2F2&b=x%20y%2A~"
    assert escaped_path("/k8s/c 1/user_config") == "/k8s/c%201/user_config"


def test_credentials_do_not_show_their_secret():
    """Error contexts and logs may contain them."""
    shown = repr(Credentials(access_key_id="id", access_key_secret="hush", security_token="hush"))

    assert ("id" in shown, "hush" in shown) == (True, False)
