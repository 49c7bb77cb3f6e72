"""Provider ids of each cloud, and what is none: it is never taken for an instance that is gone."""

import pytest

from journeyman.cloud.alibaba import ecs_instances
from journeyman.cloud.aws import instance_provider
from journeyman.errors import NoInstanceIdError

AWS, ALIBABA = instance_provider.instance_id_from, ecs_instances.instance_id_from


@pytest.mark.parametrize(
    ("parse", "provider_id", "instance_id"),
    [
        *((AWS, text, "i-0abc") for text in ("aws:///us-east-1a/i-0abc", "aws:///i-0abc", "aws://i-0abc")),
        *((ALIBABA, text, "i-bp1abc") for text in ("cn-hangzhou.i-bp1abc", "alicloud://cn-hangzhou.i-bp1abc")),
    ],
)
def test_provider_id_has_the_instance_id(parse, provider_id, instance_id):
    """Cloud controllers have written it with and without the zone, or the scheme."""
    assert parse(provider_id) == instance_id


@pytest.mark.parametrize(
    ("parse", "cloud", "text"),
    [
        *((AWS, "an AWS", text) for text in ("", "i-0abc", "aws://", "aws:///us-east-1a/", "aws:///a/node-1", "gce:///a/i-0abc")),
        *(
            (ALIBABA, "an Alibaba Cloud", text)
            for text in ("", "i-bp1abc", ".i-bp1abc", "cn-hangzhou.", "cn-hangzhou.node-1", "alicloud://.i-bp1abc")
        ),
    ],
)  # fmt: skip
def test_other_text_is_no_provider_id(parse, cloud, text):
    with pytest.raises(NoInstanceIdError, match=f"not {cloud} provider id"):
        parse(text)
