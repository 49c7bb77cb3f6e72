"""Conditions of EC2NodeClasses: what AWS refuses, and what cannot work."""


def condition(body, type_):
    """Return (status, reason, message) of a condition."""
    return next((c["status"], c["reason"], c["message"]) for c in body["status"]["conditions"] if c["type"] == type_)


def test_role_that_may_not_be_passed_is_a_condition_with_the_remedy(aws, resolved):
    """A NodeClass that was Ready names another role, which the stack's parameter NodeRoleArn lacks."""
    aws.identity.not_passable.add("second")
    before = resolved()
    assert condition(before, "Ready")[0] == "True"
    after = resolved(before["status"], role="path/second")

    status, reason, message = condition(after, "InstanceProfileReady")
    assert (status, reason) == ("False", "RoleNotAllowed")
    assert "role second" in message
    assert "NodeRoleArn" in message
    assert "iam:PassRole" in message
    assert "AddRoleToInstanceProfile to the function" not in message
    assert condition(after, "Ready")[0] == "False"
    assert after["status"]["subnets"] == before["status"]["subnets"]
    aws.identity.not_passable.clear()
    assert condition(resolved(after["status"], role="second"), "Ready")[0] == "True"


def test_refused_profile_is_a_condition_that_names_the_right(aws, resolved):
    """Others than the right to pass the role are the functions' own."""
    aws.fail_next("CreateInstanceProfile", "AccessDenied")
    status, reason, message = condition(resolved(), "InstanceProfileReady")

    assert (status, reason) == ("False", "RequestRefused")
    assert "grant iam:CreateInstanceProfile" in message
